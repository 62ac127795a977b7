"""Localisation has CodeScout's published rows, and an evaluation gives the three F1 of every task."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentic.codescout.rollout import SPEC
from agentic.codescout.world import WORLD
from benchmarks.harness.published import read_scores
from benchmarks.localization.evaluate import EVALUATOR, SCORES, our_settings, protocol
from core.data.files import write_jsonl
from core.report import build_summary
from core.report.table import data_sections
from core.runs.run_folder import RunFolder
from core.types import Sampling


def test_an_evaluation_has_all_scores_and_stands_beside_the_published_ones(
    isolation: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = WORLD.build_model(tmp_path / "model")
    write_jsonl(tmp_path / "tasks.jsonl", WORLD.draw_tasks("test", 3))
    words = ["--model", str(model), "--preset", "tiny", "--data", str(tmp_path / "tasks.jsonl")]
    words += ["--protocol", "swebench-lite", "--published-as", "CodeScout-4B", "--threads", "1"]
    words += ["--out", str(tmp_path / "out")]
    assert EVALUATOR.main(words) == 0
    folder = RunFolder(tmp_path / "out")
    (result,) = folder.evaluations()
    assert set(result.scores) == set(SCORES)
    assert result.n == 3
    sections = data_sections(build_summary(folder))
    rows = read_scores("localization", "swebench-lite")
    assert [row.name for row in rows if row.find_ours(sections) is not None] == ["CodeScout-4B"] * 2
    departures = result.notes["departures"]
    assert {"prompts: the issue alone; published: released", "failed instances: 0; published: not found"} <= {
        *departures
    }
    capsys.readouterr()
    assert EVALUATOR.main([*words, "--tasks", "9"]) == 0, "the same once more is there"
    assert "tasks.jsonl has 3 tasks, which are all taken" in capsys.readouterr().out
    assert EVALUATOR.main([*words, "--set", "model.dtype=bfloat16"]) == 1
    assert "settings.dtype was 'float32', is now 'bfloat16'" in capsys.readouterr().err


def test_what_the_recipe_does_otherwise_stands_beside_the_scores_too(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", WORLD.draw_tasks("test", 1))
    words = ["--model", "owner/name", "--policy-url", "http://127.0.0.1:1", "--data", str(tmp_path / "tasks.jsonl")]
    words += ["--protocol", "swebench-lite", "--out", str(tmp_path / "out")]
    folder = EVALUATOR.prepare(EVALUATOR.make_parser().parse_args(words)).folder
    assert any("ends the search" in line for line in build_summary(folder)["departures"])


def test_another_tool_does_not_stand_beside_the_published_ones() -> None:
    theirs, ours = protocol("swebench-lite"), our_settings(SPEC.load("paper"), Sampling(temperature=0.6))
    assert theirs.covers(ours)
    assert not theirs.covers({**ours, "tools": "a shell"})
    told = theirs.list_departures(ours)
    assert "max_turns: 6; published: not found" in told
    assert any(line.startswith("shell: bash") and "published: terminal, one session" in line for line in told)
