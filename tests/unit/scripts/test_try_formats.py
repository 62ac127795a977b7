"""`tokentrue data check` plays a few tasks in each format of a method, and counts how often a format was understood."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentic.retool.world import WORLD
from core.types import Trajectory
from scripts.check_data import COLUMNS, count_understood, main


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


@pytest.mark.parametrize(
    ("metrics", "answers"),
    [({"turns": 1.0}, "-"), ({"end_turn_limit": 1.0}, "0"), ({"end_answered": 1.0}, "1"), ({"answer_boxed": 0.0}, "0")],
)
def test_a_method_that_does_not_tell_whether_it_answered_has_no_count_of_answers(
    metrics: dict[str, float], answers: str
) -> None:
    cells = count_understood([Trajectory("1", (), metrics=metrics)])
    assert dict(zip(COLUMNS[1:], cells, strict=True))["answer found"] == answers
