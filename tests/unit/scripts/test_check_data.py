"""`tokentrue data check` shows what a method will see of a data set, refuses bad records, and plays in each format."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentic.agent.world import WORLD
from agentic.retool.world import WORLD as RETOOL
from core.data import write_jsonl
from core.rollout.method import method_spec
from core.types import Trajectory
from core.worlds import find_world
from scripts.check_data import COLUMNS, count_understood, main
from tests.contract.test_presets import METHODS

WORLDS = {method: find_world(method) for method in METHODS}
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi."},
    {"role": "assistant", "content": "Hello."},
]


def check(path: Path, method: str, model: Path, *words: str) -> int:
    return main([str(path), "--method", method, "--model", str(model), "--tasks", "0", *words])


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


TAKES_ANY_QUESTION = ("agentflow", "compaction", "memagent", "retool", "rlm", "search_r1", "toolorchestra")


@pytest.mark.parametrize("method", TAKES_ANY_QUESTION)
def test_a_method_that_takes_any_question_shows_its_first_prompt_without_a_service(
    method: str, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [
        {"question": f"Where is {n}?", "answer": f"#### {n}", "context": "It is here.", "x": 1} for n in range(5)
    ]
    path = write(tmp_path / "a.jsonl", *records)
    assert check(path, method, model, "--set", "model.max_model_len=4000") == 0
    out, err = capsys.readouterr()
    assert "a.jsonl: read 5 records, and refused none" in out
    assert f"note: {tmp_path / 'a.jsonl'}: field x is not used (5 of 5 records)" in err
    dropped = "field context is not asked for: see whether a prompt shows it (5 of 5 records)"
    assert (dropped in err) == (method in ("agentflow", "retool", "toolorchestra"))
    assert [f"Where is {n}?" in out for n in range(5)] == [True, True, True, False, False]
    assert out.count("--- answers: ") == 3
    assert "--- model.max_model_len=4,000: fits" in out


@pytest.mark.parametrize("method", sorted(WORLDS.keys() - {*TAKES_ANY_QUESTION}))
def test_a_method_whose_tasks_need_more_shows_the_first_prompts_of_its_worlds_tasks(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = WORLDS[method]
    assert world is not None
    tasks = world.draw_tasks("train", 3)
    write_jsonl(tmp_path / "a.jsonl", tasks, world.to_record)
    assert check(tmp_path / "a.jsonl", method, world.build_model(tmp_path / "model")) == 0
    shown = capsys.readouterr().out
    assert "a.jsonl: read 3 records, and refused none" in shown
    assert all(task.question in shown for task in tasks)


@pytest.mark.parametrize("method", ["retool", "search_r1", "agent"])
def test_messages_before_the_question_are_in_the_prompt(
    method: str, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"messages": [*TURNS, {"role": "user", "content": "Who?"}], "answer": "Bob", "metadata": {"world": 1}}
    if method == "agent":
        model = WORLD.build_model(tmp_path / "model", seed=0)
    assert check(write(tmp_path / "a.jsonl", record), method, model) == 0
    shown = capsys.readouterr().out
    places = [shown.index(text) for text in ("system\n", "Be brief.", "Hi.", "Hello.", "Who?", "answers: Bob")]
    assert places == sorted(places)


@pytest.mark.parametrize("method", [name for name in METHODS if not method_spec(name).keeps_messages])
def test_a_method_without_a_place_for_them_refuses_them(
    method: str, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"messages": [*TURNS, {"role": "user", "content": "Who?"}], "answer": "Bob", "context": "c"}
    assert check(write(tmp_path / "a.jsonl", record), method, model) == 1
    assert "a.jsonl:1: field 'messages': there are messages before the question" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"question": "Who?", "answer": "one\ntwo"}, "a.jsonl:2: field 'answer': is a text of 2 lines"),
        ({"question": "Who?", "answer": "''"}, "a.jsonl:2: field 'answer': is nothing once normalised"),
        ({"question": "Who?" * 400, "answer": "Bob"}, "model.max_model_len=384: does NOT fit"),
        (
            {"messages": TURNS[:2], "answer": "Bob"},
            "a-1: field 'messages': the model's chat template refuses the roles",
        ),
    ],
)
def test_a_record_that_cannot_be_right_is_named(
    record: dict[str, Any], says: str, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.jsonl", {"question": "Where?", "answer": "here"}, record)
    strict = shutil.copytree(model, tmp_path / "model")
    template = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    (strict / "chat_template.jinja").write_text(template + "{{ m.role }}: {{ m.content }}\n{% endfor %}")
    assert check(path, "search_r1", strict) == 1
    assert says in "".join(capsys.readouterr())


def test_one_rollout_of_each_format_is_shown_with_its_special_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], isolation: None
) -> None:
    model = RETOOL.build_model(tmp_path / "model", seed=0)
    records = [{"question": f"What is {n} blick 7?", "answer": str(n * 7)} for n in range(4)]
    path = write(tmp_path / "a.jsonl", *records)
    words = [str(path), "--method", "retool", "--model", str(model), "--set", "retool.max_tokens=8"]
    assert main([*words, "--tasks", "2"]) == 0
    out = capsys.readouterr().out
    for form in ("tags", "fences"):
        _, found, rest = out.partition(f"=== retool.format={form}: 2 tasks")
        assert found
        shown = rest.partition("===")[0]
        assert "<|im_start|>user\nWhat is " in shown
        assert "--- turn 1, reply, 8 tokens" in shown
        assert "--- ended as truncated, reward -1.0" in shown
    assert "--- not for this model and preset: retool.format is calls" in out
    table = [line.split() for line in out.rpartition("===")[2].splitlines()[1:]]
    assert [row[:4] for row in table[1:3]] == [["tags", "2", "of", "2"], ["fences", "2", "of", "2"]]
    assert main([*words, "--tasks", "0"]) == 0
    assert "retool.format" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("metrics", "answers"),
    [({"turns": 1.0}, "-"), ({"end_turn_limit": 1.0}, "0"), ({"end_answered": 1.0}, "1"), ({"answer_boxed": 0.0}, "0")],
)
def test_a_method_that_does_not_tell_whether_it_answered_has_no_count_of_answers(
    metrics: dict[str, float], answers: str
) -> None:
    cells = count_understood([Trajectory("1", (), metrics=metrics)])
    assert dict(zip(COLUMNS[1:], cells, strict=True))["answer found"] == answers
