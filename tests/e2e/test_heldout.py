"""`python -m benchmarks.heldout memagent` on a short training run: every variant, cell by cell, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.heldout.__main__ import main
from core.engine.train import main as train
from core.runs.files import read_jsonl
from core.runs.run_folder import RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def run(preset: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    out = tmp_path_factory.mktemp("runs") / "small"
    overrides = ("run.steps=2", "run.eval_every=2", "run.eval_tasks=2")
    settings = [part for override in overrides for part in ("--set", override)]
    assert train(["memagent", "--preset", str(preset), "--out", str(out), *settings]) == 0
    assert main(["memagent", "--run", str(out), "--tasks", "3"]) == 0
    return RunFolder(out)


def test_both_variant_are_scored_on_the_held_out_tasks(run: RunFolder):
    trained, untrained = run.evaluations()
    assert (trained.variant, untrained.variant) == ("trained", "untrained")
    assert (trained.data, trained.length, trained.n) == ("dev", 0, 3)
    assert trained.model == "seed-0/checkpoints/step-000002"
    for result in (trained, untrained):
        assert result.measures["turns"] == [float(turns) for turns in result.turns]
        assert result.failures == {}


def test_every_trajectory_is_there_and_its_reward_is_the_score(run: RunFolder):
    for result in run.evaluations():
        records = list(read_jsonl(next(run.evaluation_path.glob(f"{result.variant}__*.jsonl"))))
        assert sorted(r["reward"] for r in records) == sorted(result.scores["official"])
        assert all(r["turns"][-1]["role"] == "final" for r in records)
        assert {r["step"] for r in records} == {2 if result.variant == "trained" else 0}


def test_the_report_has_both_arms(run: RunFolder):
    summary = json.loads((run.path / "summary.json").read_text())
    assert list(summary["variants"]) == ["trained", "untrained"]
    assert "untrained" in (run.path / "report.html").read_text()


def test_what_is_there_is_not_run_again(run: RunFolder, capsys: pytest.CaptureFixture[str]):
    before = {path: path.stat().st_mtime_ns for path in run.evaluation_path.iterdir()}
    assert main(["memagent", "--run", str(run.path), "--tasks", "2"]) == 0
    assert {path: path.stat().st_mtime_ns for path in run.evaluation_path.iterdir()} == before
    assert "tasks in" not in capsys.readouterr().out
