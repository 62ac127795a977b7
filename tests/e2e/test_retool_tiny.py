"""ReTool's `tiny` preset from the command line at its smallest scale: data, warm start, GRPO, variants, report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentic.retool.tiny import start_model
from agentic.retool.tiny.tasks import generate
from core.data import write_jsonl
from core.runs.files import read_jsonl
from tests.e2e.conftest import REPOSITORY, environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SMALLEST = {
    "warm_start.steps": 8, "warm_start.copy_steps": 1, "warm_start.batch_size": 8, "rollout.tasks_per_step": 2,
    "rollout.group_size": 2, "run.steps": 2, "run.eval_every": 1, "run.eval_tasks": 2, "run.seeds": [0],
    "model.device": "cpu",
}  # fmt: skip
VARIANTS = ("trained", "untrained", "untrained-greedy", "no-code", "random-code", "best-constant")


def call(module: str, *arguments: object) -> None:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    subprocess.run(command, cwd=REPOSITORY, env=environment(), check=True, timeout=200)


@pytest.fixture(scope="module")
def run(isolation: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("data")
    out = tmp_path_factory.mktemp("runs") / "retool-tiny"
    start_model.build(data / "model", seed=0)
    for split in ("train", "dev", "test"):
        write_jsonl(data / f"{split}.jsonl", generate(split, 6))
    files = {"data.train": data / "train.jsonl", "data.eval": data / "dev.jsonl", "model.path": data / "model"}
    settings = [part for key, value in (SMALLEST | files).items() for part in ("--set", f"{key}={value}")]
    call("core.train.command", "retool", "--preset", "tiny", "--out", out, *settings)
    call("benchmarks.heldout", "retool", "--run", out, "--data", data / "test.jsonl", "--tasks", 6, "--by", "words")
    return out


def test_the_run_trained_and_counted(run: Path) -> None:
    steps = [record for record in read_jsonl(run / "seed-0" / "metrics.jsonl") if record["stage"] == "train"]
    assert [record["step"] for record in steps] == [1, 2]
    for record in steps:
        assert record["failures"] == {}
        assert -1.0 <= record["reward"] <= 1.0
        assert record.keys() >= {"turns", "calls_interpreter", "program_errors", "answer_boxed", "official"}


def test_every_variant_is_in_the_summary_and_programs_ran_in_the_sandbox(run: Path) -> None:
    variants = json.loads((run / "summary.json").read_text())["variants"]
    assert variants.keys() == set(VARIANTS)
    assert variants["random-code"]["0"]["measures"]["calls_interpreter"] == 1
    assert variants["no-code"]["0"]["measures"]["calls_interpreter"] == 0
    assert (run / "report.html").is_file()
