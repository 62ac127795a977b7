"""`tokentrue data check` plays a few tasks in each format of a method, and counts how often a format was understood."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentic.retool.world import WORLD
from core.rollout.method import method_spec
from core.types import Completion, Trajectory, Turn
from scripts.check_data import main
from scripts.try_formats import count_understood, has_weights, list_formats


@pytest.mark.parametrize(
    ("method", "key", "formats"),
    [
        ("retool", "retool.format", ("tags", "fences", "calls")),
        ("memagent", "memagent.answer_format", ("boxed", "the_answer_is")),
        ("compaction", "", ("as it is",)),
    ],
)
def test_the_formats_are_those_of_the_section(method: str, key: str, formats: tuple[str, ...]) -> None:
    assert list_formats(method_spec(method).load("tiny"), method) == (key, formats)


def test_what_was_understood_is_counted() -> None:
    turn = Turn("act", (1,), Completion((5, 6), (-0.1, -0.2), "stop"), True)
    cut = replace(turn, completion=replace(turn.completion, finish_reason="length"))
    metrics = {"calls_a": 2.0, "calls_b": 0.0, "failed_calls": 1.0, "answer_boxed": 1.0}
    right = Trajectory("t", (turn, cut), reward=1.0, metrics=metrics)
    wrong = Trajectory("t", (turn,), reward=-1.0, metrics=dict.fromkeys(metrics, 0.0))
    failed = Trajectory("t", (), status="failed", failure="sandbox")
    assert count_understood([right, wrong, failed]) == ("2 of 3", "1", "1 of 2", "1", "1", "1", "3")
    assert count_understood([replace(right, metrics={"answered": 0.0})])[1:4] == ("-", "-", "0")


def test_a_hub_id_has_no_weights_here(model: Path) -> None:
    assert has_weights(str(model))
    assert not has_weights("Qwen/Qwen2.5-7B-Instruct")
    assert not has_weights(None)


def test_one_rollout_of_each_format_is_shown_with_its_special_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], isolation: None
) -> None:
    model = WORLD.build_model(tmp_path / "model", seed=0)
    records = [{"question": f"What is {n} blick 7?", "answer": str(n * 7)} for n in range(4)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
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
