"""Records are read as people have them: GSM8K, chats, TRL's, verl's; what cannot be right is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.data import DataError, Notes, read_tasks
from core.types import Task

SOLUTION = "She sells 48/2 = 24 in May.\nShe sells 48+24 = 72.\n#### 72"
MATRIX = "\\begin{pmatrix} 1 \\\\\n2 \\end{pmatrix}"
WHO = {"role": "user", "content": "Who?"}
SYSTEM = {"role": "system", "content": "Be brief."}
REPLY = {"role": "assistant", "content": "Bob"}
TURNS = [SYSTEM, {"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]


def read(tmp_path: Path, *records: Any, **options: Any) -> list[Task]:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return read_tasks(path, **{"require_context": False, "keep_messages": True, **options})


@pytest.mark.parametrize(
    ("record", "answers"),
    [
        ({"question": "Who?", "answer": SOLUTION}, ("72",)),
        ({"question": "Who?", "answer": "... #### 1,072"}, ("1072",)),
        ({"question": "Who?", "answer": "So\n#### x, y"}, ("x, y",)),
        ({"question": "Who?", "answer": "#### 1,2"}, ("1,2",)),
        ({"question": "Who?", "answer": "#### -1,234,567.5"}, ("-1234567.5",)),
        ({"question": "Who?", "answer": "#### 72"}, ("72",)),
        ({"question": "Who?", "answer": "\\(\\boxed{5}\\)"}, ("\\(\\boxed{5}\\)",)),
        ({"question": "Who?", "answer": MATRIX, "context": ["a"], "source": ["b"], "metadata": "c"}, (MATRIX,)),
        ({"id": "7", "question": "Who?", "answer": SOLUTION}, ("72",)),
        ({"problem": "Who?", "answer": SOLUTION}, ("72",)),
        ({"prompt": "Who?", "label": SOLUTION}, ("72",)),
        ({"question": "Who?", "golden_answers": [SOLUTION]}, ("72",)),
        ({"prompt": [WHO], "reward_model": {"ground_truth": SOLUTION}}, ("72",)),
        ({"problem": "Who?", "answer": 72, "solution": "long\nand wide"}, ("72",)),
        ({"problem": "Who?", "answer": 72.0}, ("72",)),
        ({"problem": "Who?", "answer": 0.0000001}, ("0.0000001",)),
        ({"prompt": [WHO], "reward_model": {"ground_truth": 72}}, ("72",)),
        ({"prompt": "Who?", "answer": "\\boxed{25}"}, ("\\boxed{25}",)),
        ({"prompt": [WHO], "solution": "$\\frac12$"}, ("$\\frac12$",)),
        ({"messages": [WHO], "ground_truth": "Bob"}, ("Bob",)),
        ({"messages": [WHO, REPLY]}, ("Bob",)),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Who?"}]}], "answer": "Bob"}, ("Bob",)),
        ({"question": "Who?", "answers": ["Bob", "Rob"], "answer": "Bob", "context": "Bob"}, ("Bob", "Rob")),
        ({"question": "Who?", "answer": None, "expected_answer": "72"}, ("72",)),
    ],
)
def test_a_record_is_read_with_its_final_answer(
    record: dict[str, Any], answers: tuple[str, ...], tmp_path: Path
) -> None:
    (task,) = read(tmp_path, record)
    assert (task.question, task.answers, task.earlier_messages) == ("Who?", answers, ())
    assert task.task_id == record.get("id", "x-0")


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [*TURNS, WHO], "answer": "Bob"},
        {"messages": [*TURNS, WHO, REPLY]},
        {"prompt": [*TURNS, WHO], "answer": "Bob"},
        {"prompt": [*TURNS, WHO], "label": "Bob"},
        {"prompt": [*TURNS, WHO], "reward_model": {"ground_truth": ["Bob"]}},
        {"task_id": "x-0", "question": "Who?", "answers": ["Bob"], "earlier_messages": TURNS},
    ],
)
def test_messages_before_the_question_are_kept_or_refused(record: dict[str, Any], tmp_path: Path) -> None:
    (task,) = read(tmp_path, record)
    assert task == Task("x-0", "Who?", ("Bob",), metadata=task.metadata, earlier_messages=tuple(TURNS))
    assert task.messages == [*TURNS, WHO]
    with pytest.raises(DataError, match=r"x\.jsonl:1: field 'messages': .*\(system, user, assistant\).*no place"):
        read(tmp_path, record, keep_messages=False)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"question": "Who?", "answer": "one\ntwo"}, r":1: field 'answer': is a text of 2 lines.*Fix: .*#### 72"),
        ({"question": "Who?", "answer": "So \\boxed{25}."}, r"field 'answer': is a box with text around it"),
        ({"problem": "Who?", "solution": "a " * 101}, r"field 'solution': is a text of 101 words"),
        ({"problem": "Who?", "answer": "因为" * 101 + "72"}, r"field 'answer': is a text of 102 words"),
        ({"prompt": "[{'role': 'user', 'content': 'Who?'}]", "answer": "B"}, r"'prompt': holds messages written as"),
        ({"prompt": "Who?", "label": "a\nb"}, r"field 'label': is a text of 2 lines"),
        ({"question": "Who?", "golden_answers": ["Bob", "a\nb"]}, r"field 'golden_answers'"),
        ({"messages": [WHO, {"role": "assistant", "content": "a\nb"}]}, r"field 'messages': is a text of 2 lines"),
        ({"messages": [WHO]}, r"field 'answer': is missing.*add"),
        ({"messages": []}, r"field 'messages'"),
        ({"messages": [REPLY], "answer": "Bob"}, r"field 'messages': does not end with a message of the user"),
        ({"prompt": [WHO, REPLY], "answer": "Bob"}, r"field 'prompt': does not end with a message of the user"),
        ({"messages": [{"role": "tool", "content": "x"}, WHO], "answer": "B"}, r"field 'messages\.0\.role': is 'tool'"),
        ({"messages": [{**REPLY, "tool_calls": [1]}, WHO], "answer": "B"}, r"'messages\.0\.tool_calls'"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}], "answer": "B"}, r"'messages\.0\.content'"),
        ({"messages": [{"role": "user", "content": " "}], "answer": "B"}, r"'messages\.0\.content'"),
        ({"question": "Who?", "answer": float("nan")}, r"field 'answer': must hold texts .*nan"),
        ({"question": "Who?", "answer": True}, r"field 'answer': must hold texts .*True"),
        ({"question": "Who?", "answer": {"text": "72"}}, r"field 'answer': must be one or more texts.*Fix: write"),
        ({"question": "Who?", "answer": None}, r"field 'answer': must be one or more texts"),
        ({"question": 7, "answer": "72"}, r"field 'question': must be a non-empty string, is 7"),
        ({"question": "Who?", "golden_answers": [1995]}, r"Fix: write it as a text: \"1995\""),
        ({"id": {"a": 1}, "question": "Who?", "answer": "72"}, r"field 'id': must be a text or an integer"),
        ({"id": 7.5, "question": "Who?", "golden_answers": ["72"]}, r"field 'id': must be a text or an integer"),
        ({"id": True, "question": "Who?", "answer": "B"}, r"field 'id': must be a text or an"),
        ({"question": "Who?", "answer": "B", "answer_type": ["x"], "category": "m"}, r"'answer_type': must be a text"),
        ({"question": "Who?", "answer": "B", "answer_type": "x", "category": {}}, r"field 'category': must be a text"),
        ({"prompt": [WHO], "reward_model": {"ground_truth": {"a": 1}}}, r"'reward_model\.ground_truth': must be"),
        ({"prompt": [WHO], "reward_model": "72"}, r"field 'reward_model': must be an object"),
        ({"chosen": "a", "rejected": "b"}, r"unknown format with fields chosen, rejected\. Fix: name the question"),
    ],
)
def test_what_cannot_be_right_is_refused(record: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=says) as caught:
        read(tmp_path, record)
    assert f"{tmp_path / 'x.jsonl'}:1: " in str(caught.value)
    assert "Fix: " in str(caught.value)


@pytest.mark.parametrize(
    ("record", "metadata"),
    [
        ({"problem": "Who?", "answer": "7", "url": "u", "year": 2024}, {"url": "u", "year": 2024}),
        ({"problem": "Who?", "answer": "7", "url": None, "year": math.nan, "metadata": "kept"}, {"metadata": "kept"}),
        ({"problem": "Who?", "answer": "7", "metadata": {"a": 1}, "context": ["left out"]}, {"a": 1}),
        ({"problem": "Who?", "answer": "7", "metadata": '{"a": 1}'}, {"a": 1}),
        ({"problem": "Who?", "answer": "7", "metadata": "{a"}, {"metadata": "{a"}),
        ({"prompt": [WHO], "reward_model": {"ground_truth": "7"}, "data_source": math.nan}, {}),
    ],
)
def test_metadata_are_what_the_record_says_without_its_gaps(
    record: dict[str, Any], metadata: dict[str, Any], tmp_path: Path
) -> None:
    (task,) = read(tmp_path, record)
    assert (task.metadata, task.context) == (metadata, "")


@pytest.mark.parametrize(
    "record",
    [
        {"question": "Who?", "answer": 7, "answer_type": "span", "metadata": {"kind": "a"}},
        {"question": "Who?", "golden_answers": ["7"]},
        {"problem": "Who?", "answer": "7", "tools": ["search"]},
        {"prompt": "Who?", "label": "7", "metadata": {"kind": "a"}},
    ],
)
def test_a_document_is_kept_in_every_format(record: dict[str, Any], tmp_path: Path) -> None:
    (task,) = read(tmp_path, {**record, "context": "Bob has 7."}, require_context=True)
    assert (task.question, task.answers, task.context) == ("Who?", ("7",), "Bob has 7.")
    assert task.metadata.get("kind") == record.get("metadata", {}).get("kind")
    assert "context" not in task.metadata


def test_a_judge_can_compare_with_a_long_answer(tmp_path: Path) -> None:
    (task,) = read(tmp_path, {"Prompt": "Who?", "Answer": "Bob,\nand Jane"}, short_answers=False)
    assert task.answers == ("Bob,\nand Jane",)


def test_what_is_not_used_is_told_once_with_its_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = Notes()
    row = {"prompt": [{**WHO, "name": "ann"}], "reward_model": {"ground_truth": "Bob", "style": "rule"}}
    row |= {"ability": "qa"}
    read(tmp_path, row, {**row, "ability": None}, {"messages": [WHO, REPLY]}, {"q": "", **row}, notes=notes)
    notes.tell("x.jsonl")
    assert sorted(capsys.readouterr().err.splitlines()) == [
        "note: x.jsonl: 4 records are 1 different tasks; an evaluation takes each once",
        "note: x.jsonl: field ability is not used (2 of 4 records)",
        "note: x.jsonl: field reward_model.style is not used (3 of 4 records)",
        "note: x.jsonl: name of a message is not used (3 of 4 records)",
        "note: x.jsonl: the last reply is the answer (1 of 4 records)",
    ]


@pytest.mark.parametrize(
    ("answer", "told"), [('["Paris", "Lyon"]', True), ("['Paris' 'Lyon']", True), ("[1, 2]", False), ("[Paris]", False)]
)
def test_a_list_that_a_csv_file_made_a_text_is_told(answer: str, told: bool, tmp_path: Path) -> None:
    path, notes = tmp_path / "x.csv", Notes()
    quoted = answer.replace('"', '""')
    path.write_text(f'question,answers,task_id\nWho?,"{quoted}",a\n')
    (task,) = read_tasks(path, require_context=False, notes=notes)
    assert task.answers == (answer,)
    line = "the list written as text in answers is read as one answer (1 of 1 records)"
    assert notes.describe() == [line] * told


def test_our_own_format_is_read_from_csv_and_without_the_gaps_of_parquet(tmp_path: Path) -> None:
    metadata = '"{""kind"": ""y""}"'
    (tmp_path / "x.csv").write_text(f"task_id,question,answers,context,metadata\n1,a ?,b,,{metadata}\n2,c ?,d,,\n")
    own = {"question": "a ?", "answers": ["b"]}
    rows = [{**own, "metadata": {"kind": "y"}}, {**own, "metadata": {"key": None, "other": {"in": 1}}}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    for name, second in (("x.csv", {}), ("x.parquet", {"other": {"in": 1}})):
        tasks = list(read_tasks(tmp_path / name, require_context=False))
        assert [task.metadata for task in tasks] == [{"kind": "y"}, second]
    assert [task.metadata for task in read(tmp_path, rows[1])] == [rows[1]["metadata"]], "a null in JSON was meant"


def test_a_number_of_our_own_format_says_which_task_it_is(tmp_path: Path) -> None:
    """An environment may begin every task alike."""
    own = [{"task_id": str(i), "question": "Guess", "answers": ["7"], "metadata": {"index": i}} for i in range(3)]
    published = [{"prompt": "?", "reward_model": {"ground_truth": "1"}, "extra_info": {"index": i}} for i in range(3)]
    assert len(read(tmp_path, *own, distinct=True)) == 3
    assert len(read(tmp_path, *published, distinct=True)) == 1


def test_an_evaluation_takes_a_repeated_question_once(tmp_path: Path) -> None:
    """verl's file of the AIME has each of 30 problems 32 times in a row, numbered by `extra_info.index`."""
    rows = [
        {
            "prompt": [{"role": "user", "content": f"Problem {number // 32}"}],
            "reward_model": {"ground_truth": str(number // 32)},
            "extra_info": {"index": number},
        }
        for number in range(960)
    ]
    notes = Notes()
    tasks = read(tmp_path, *rows, distinct=True, limit=30, notes=notes)
    assert [task.answers for task in tasks] == [(str(number),) for number in range(30)]
    assert [task.task_id for task in tasks[:2]] == ["x-0", "x-32"]
    assert len(read(tmp_path, *rows)) == 960
    other = {**rows[0], "extra_info": {"index": 0, "world": 7}}
    assert len(read(tmp_path, *rows[:3], other, distinct=True)) == 2


@pytest.mark.parametrize(
    ("file", "count", "first"),
    [
        ("gsm8k/gsm8k_train.jsonl", 7473, ("72",)),
        ("gsm8k/gsm8k_test.jsonl", 1319, ("18",)),
        ("math/math_train_7474.jsonl", 7470, ("0",)),
        ("math/math_500.jsonl", 500, ("\\left( 3, \\frac{\\pi}{2} \\right)",)),
        ("math/deepmath_4994.jsonl", 4990, ("1",)),
        ("math/gsm_hard.jsonl", 1319, ("-9867630",)),
        ("math/aime_1983_2023.jsonl", 975, ("60",)),
        ("aime24.jsonl", 30, ("73",)),
        ("multihop/hotpotqa.jsonl", 1885, ("Chief of Protocol",)),
        ("multihop/2wiki.jsonl", 991, ("Cork",)),
        ("multihop/musique.jsonl", 253, ("Stanley",)),
    ],
)
def test_published_sets_are_read_as_they_are(shared_data: Path, file: str, count: int, first: tuple[str, ...]) -> None:
    tasks = read_tasks(shared_data / file, require_context=False, distinct=True)
    assert (len(tasks), tasks[0].answers) == (count, first)
    if file.startswith("gsm8k"):
        assert all(answer.lstrip("-").replace(".", "").isdigit() for task in tasks for answer in task.answers)
