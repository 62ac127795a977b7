"""AgentFlow's `tiny` preset from the command line at its smallest scale: data, warm start, GRPO, variants, report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentic.agentflow.tiny import start_model
from agentic.agentflow.tiny.facts import SPLITS
from agentic.agentflow.tiny.tasks import generate
from core.data import write_jsonl
from core.inspect import replay
from core.runs.files import read_jsonl
from core.runs.record import read_rollouts
from core.runs.run_folder import RunFolder
from tests.e2e.conftest import REPOSITORY, environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SMALLEST = {
    "warm_start.steps": 8, "warm_start.copy_steps": 1, "warm_start.batch_size": 4, "rollout.tasks_per_step": 2,
    "rollout.group_size": 2, "run.steps": 2, "run.eval_every": 1, "run.eval_tasks": 2, "run.seeds": [0],
    "model.device": "cpu",
    "algorithm.entropy_coef": 0.01,  # so that steps without a reward have a gradient, which a replay must repeat
    "model.max_model_len": 384,  # a policy of nine steps rambles, and its memory outgrows the preset's 192
}  # fmt: skip
VARIANTS = ("trained", "untrained", "always-python-coder", "always-base-generator", "random-tool", "no-tool")


def call(module: str, *arguments: object) -> None:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    subprocess.run(command, cwd=REPOSITORY, env=environment(), check=True, timeout=200)


@pytest.fixture(scope="module")
def run(isolation: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("data")
    out = tmp_path_factory.mktemp("runs") / "agentflow-tiny"
    start_model.build(data / "model", seed=0)
    for split in SPLITS:
        write_jsonl(data / f"{split}.jsonl", generate(split, 6))
    files = {"data.train": data / "train.jsonl", "data.eval": data / "dev.jsonl", "model.path": data / "model"}
    settings = [part for key, value in (SMALLEST | files).items() for part in ("--set", f"{key}={value}")]
    call("core.train.command", "agentflow", "--preset", "tiny", "--out", out, *settings)
    call(
        "benchmarks.heldout",
        "agentflow",
        "--run",
        out,
        "--data",
        data / "test.jsonl",
        "--tasks",
        6,
        "--variants",
        *VARIANTS,
    )
    return out


def test_the_run_trained_and_counted(run: Path):
    steps = [record for record in read_jsonl(run / "seed-0" / "metrics.jsonl") if record["stage"] == "train"]
    assert [record["step"] for record in steps] == [1, 2]
    for record in steps:
        assert record["failures"] == {}
        assert record.keys() >= {"turns", "tool_errors", "parse_errors", "calls_python_coder", "calls_base_generator"}


def test_the_planner_alone_is_trained(run: Path):
    turns = [turn for rollout in read_rollouts(RunFolder(run).rollouts_path(0)) for turn in rollout.turns]
    assert turns
    assert all(turn.trained == turn.role.startswith("planner.") for turn in turns)


def test_the_run_replays_bit_for_bit_and_its_own_code_gives_the_same_rewards(
    run: Path, isolation: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The planner is the policy; frozen roles and tools run again."""
    assert replay.main([str(run), "--reward", "method"]) == 0
    printed = capsys.readouterr().out
    assert "steps 1 to 2 from" in printed
    assert printed.count(" 0 of 4 rollouts changed") == 2
    assert printed.count("grad_norm") == 2
    assert printed.endswith("equal to the run\n")


def test_every_variant_is_in_the_summary(run: Path):
    variants = json.loads((run / "summary.json").read_text())["variants"]
    assert variants.keys() == set(VARIANTS)
    assert (run / "report.html").is_file()
