"""Coding's `tiny` preset from the command line at its smallest scale: data, warm start, GRPO, variants, report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentic.coding.repairs.generate import draw_record
from agentic.coding.tiny import start_model
from core.data.files import write_records
from core.runs.files import read_jsonl
from tests.e2e.conftest import REPOSITORY, Launcher, environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SMALLEST = {
    "warm_start.steps": 6, "warm_start.copy_steps": 1, "warm_start.batch_size": 8,
    "rollout.tasks_per_step": 2, "rollout.group_size": 2, "run.steps": 2, "run.eval_every": 2, "run.eval_tasks": 2,
    "run.seeds": [0], "model.device": "cpu",
}  # fmt: skip
VARIANTS = ("trained", "best-constant")
TASKS = 3


@pytest.fixture(scope="module")
def run(isolation: None, launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("data")
    out = tmp_path_factory.mktemp("runs") / "coding-tiny"
    start_model.build(data / "model", seed=0)
    for split in ("train", "dev", "test"):
        write_records(data / f"{split}.jsonl", (draw_record(split, number, "function") for number in range(6)))
    files = {"data.train": data / "train.jsonl", "data.eval": data / "dev.jsonl", "model.path": data / "model"}
    settings = [part for key, value in (SMALLEST | files).items() for part in ("--set", f"{key}={value}")]
    launcher.start(["--preset", "tiny", "--out", str(out), *settings], "coding")
    assert launcher.wait() == 0, launcher.log.read_text()[-3000:]
    command = [sys.executable, "-m", "benchmarks.heldout", "coding", "--run", out, "--data", data / "test.jsonl"]
    command += ["--tasks", str(TASKS), "--by", "kind", "--variants", *VARIANTS]
    subprocess.run(command, cwd=REPOSITORY, env=environment(), check=True, timeout=200)
    return out


def test_the_run_trained_and_every_rollout_was_graded(run: Path):
    steps = [record for record in read_jsonl(run / "seed-0" / "metrics.jsonl") if record["stage"] == "train"]
    assert [record["step"] for record in steps] == [1, 2]
    for record in steps:
        assert record["failures"] == {}
        assert sum(value for name, value in record.items() if name.startswith("verdict_")) == pytest.approx(1.0)


def test_the_variants_are_in_the_summary_and_the_constant_edits(run: Path):
    variants = json.loads((run / "summary.json").read_text())["variants"]
    assert variants.keys() == set(VARIANTS)
    measures = variants["best-constant"]["0"]["measures"]
    assert measures["calls_edit"] > 0
    assert measures["end_answered"] == 1.0
    assert (run / "report.html").is_file()
