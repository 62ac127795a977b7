from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.data import DataError, iter_tasks, read_tasks, write_jsonl
from core.data.files import read_records
from core.types import Task

TRAINING = {
    "data_source": "hotpotqa",
    "prompt": [{"role": "user", "content": "Who?"}],
    "context": "Document 1:\nBob",
    "ability": "memory",
    "reward_model": {"style": "rule", "ground_truth": ["Bob", "Robert"]},
    "extra_info": {"index": 7, "question": "Who?", "num_docs": 200},
}
EVALUATION = {"context": "Document 1:\nBob", "input": "Who?", "answers": ["Bob"], "num_docs": 50, "index": 3}
RULER = {"index": 1, "input": "Who?", "context": "Bob", "outputs": ["Bob"], "answer_prefix": " It is", "length": 9}
SLIME = {"prompt": "Who?", "label": "Bob", "metadata": {"context": "Bob", "ground_truth": ["Bob", "B."], "num_docs": 2}}
OWN = {"task_id": "a", "question": "Who?", "answers": ["Bob"], "context": "Bob", "metadata": {"depth": [0.5]}}


def write_lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    ("record", "answers", "metadata"),
    [
        (TRAINING, ("Bob", "Robert"), {"index": 7, "num_docs": 200, "data_source": "hotpotqa"}),
        (EVALUATION, ("Bob",), {"num_docs": 50, "index": 3}),
        (RULER, ("Bob",), {"answer_prefix": " It is", "length": 9, "index": 1}),
        (SLIME, ("Bob", "B."), {"num_docs": 2}),
        (OWN, ("Bob",), {"depth": [0.5]}),
    ],
)
@pytest.mark.parametrize("layout", ["jsonl", "json", "parquet"])
def test_every_format_is_read_in_every_layout(
    record: dict[str, Any], answers: tuple[str, ...], metadata: dict[str, Any], layout: str, tmp_path: Path
) -> None:
    second = {**record, "task_id": "b"} if "task_id" in record else record
    path = tmp_path / f"set.{layout}"
    if layout == "jsonl":
        write_lines(path, record, second)
    elif layout == "json":
        path.write_text("\n " + json.dumps([record, second], indent=1))
    else:
        pq.write_table(pa.Table.from_pylist([record, second]), path)
    tasks = read_tasks(path)
    assert [task.task_id for task in tasks] == (["a", "b"] if "task_id" in record else ["set-0", "set-1"])
    for task in tasks:
        assert (task.question, task.answers) == ("Who?", answers)
        assert task.context.endswith("Bob")
        assert metadata.items() <= dict(task.metadata).items()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({**OWN, "context": ""}, r"x\.jsonl:2: field 'context': is missing, empty or no text"),
        ({k: v for k, v in TRAINING.items() if k != "context"}, r":2: field 'context'"),
        ({**OWN, "answers": ["", "a"]}, r":2: field 'answers': must hold texts that are not empty, holds ''"),
        ({**OWN, "answers": [7]}, r":2: field 'answers'.*Fix: write it as a text: \"7\""),
        ({**OWN, "metadata": [1]}, r":2: field 'metadata': must be an object"),
        ({**OWN, "context": {"a": 1}}, r":2: field 'context': must be a string"),
        ({**EVALUATION, "context": [4, 5]}, r":2: field 'context': holds document numbers.*--num-docs"),
        ({"question": "q", "answer": "a", "supporting_facts": [], "context": []}, r":2: a raw HotpotQA item"),
        ([1], r":2: a list, not an object"),
        ({**OWN, "task_id": "first"}, r":2: field 'task_id': 'first' occurs twice"),
    ],
)
def test_a_bad_record_is_named_with_its_line_and_field(record: Any, message: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", {**OWN, "task_id": "first"}, record)
    tasks = iter_tasks(path)
    assert next(tasks).task_id == "first"
    with pytest.raises(DataError, match=message) as caught:
        next(tasks)
    assert "Fix: " in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.jsonl", None, "no such file"),
        ("empty.jsonl", b"\n", "holds no records"),
        ("cut.jsonl", json.dumps(OWN).encode() + b'\n\n{"task_id": "a', r"cut\.jsonl:3: broken JSON at column \d+"),
        ("broken.json", b'[{"a": 1},\n{"b": ]', r"broken\.json:2: broken JSON"),
        ("broken.parquet", b"nothing", "not a readable parquet file"),
        ("table.csv", b"question,answer\n", "holds no records"),
        ("table.xlsx", b"PK", r"table\.xlsx:1: broken JSON.*Fix: use JSONL, JSON, CSV or parquet"),
        ("short.csv", b"question,answer\nWho?\n", r"short\.csv, record 0: 1 values for 2 columns"),
        ("quote.csv", b'question,answer\n"Who?,Bob\n', r"quote\.csv:2: broken CSV"),
        ("names.csv", b"question,question\nWho?,Bob\n", r"names\.csv:1: columns without a name or with the same"),
        ("twice.jsonl", b'{"question": "a", "answer": "b", "answer": "c"}', r"twice\.jsonl:1: .*'answer' occurs twice"),
        (".", None, "is a folder"),
        ("packed.jsonl", b"\x1f\x8b\x08\x00", r"packed\.jsonl: gzip cannot unpack it"),
    ],
)
def test_a_bad_file_is_named(name: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_tasks(tmp_path / name)


texts = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)
answers = st.from_regex(r"[a-zA-Zé][\w .,-]*", fullmatch=True)


@given(
    st.lists(
        st.builds(Task, texts, texts, st.tuples(answers, answers), texts), min_size=1, unique_by=lambda t: t.task_id
    )
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, tasks: list[Task]) -> None:
    path = tmp_path_factory.mktemp("data") / "deep" / "x.jsonl"
    assert write_jsonl(path, tasks) == len(tasks)
    assert read_tasks(path) == tasks


RELEASED = {"index": 7, "category": "qa", "problem": "Who?", "answer": "Bob", "tools": [], "pref_vec": {"cost": 1.0}}


@pytest.mark.parametrize(
    "instructions", ["Cancel it.", {"reason_for_call": "a storm", "task_instructions": "Cancel it."}]
)
def test_a_released_conversation_has_the_request_of_its_user(instructions: Any, tmp_path: Path) -> None:
    example = {"id": "9", "user_scenario": {"instructions": instructions}}
    record = {**RELEASED, "category": "func_call", "problem": "", "answer": "", "example": example}
    (task,) = read_tasks(write_lines(tmp_path / "x.jsonl", record), require_context=False)
    assert (task.question, task.answers, task.metadata["example"]) == ("Cancel it.", (), example)
    for without in ({}, {"user_scenario": None}, {"user_scenario": {"instructions": {}}}):
        with pytest.raises(DataError, match=r"x\.jsonl:1: field 'problem'"):
            read_tasks(write_lines(tmp_path / "x.jsonl", {**record, "example": without}), require_context=False)


@pytest.mark.parametrize(
    "record",
    [
        {**RELEASED, "category": "func_call", "answer": ""},
        {**OWN, "answers": [], "metadata": {"category": "func_call"}},
        {"prompt": "Who?", "label": "", "metadata": {"category": "func_call"}},
    ],
)
def test_a_conversation_needs_no_answer(record: dict[str, Any], tmp_path: Path) -> None:
    (task,) = read_tasks(write_lines(tmp_path / "x.jsonl", record), require_context=False)
    assert task.answers == ()
    write_jsonl(tmp_path / "again.jsonl", [task])
    assert read_tasks(tmp_path / "again.jsonl", require_context=False) == [task]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"question": "a"}\n{"question": "half \\ud83d"}\n', r"data\.jsonl:2: field 'question': half of a character"),
        ('{"question": "a", "answers": ["\\udc00"]}\n', r"data\.jsonl:1: field 'answers': half of a character"),
        ('[{"metadata": {"k": "\\ud800x"}}]', r"data\.jsonl, record 0: field 'metadata': half of a character"),
        ("{}\n" + "[" * 100_000 + "\n", r"data\.jsonl:2: broken JSON .*recursion"),
        ('{"n": ' + "9" * 5000 + "}\n", r"data\.jsonl:1: broken JSON .*digits"),
    ],
)
def test_what_json_allows_and_no_text_can_hold_is_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "data.jsonl").write_text(text)
    with pytest.raises(DataError, match=says):
        list(read_records(tmp_path / "data.jsonl"))
