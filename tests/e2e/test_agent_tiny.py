"""An agent trains from the command line, over HTTP: two agents in one run, a warm start, GRPO steps, one row each."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agentic.agent.tiny import start_model
from agentic.agent.tiny.tasks import generate
from core.data import write_jsonl
from core.runs.files import read_jsonl
from core.runs.record import read_rollouts
from core.runs.run_folder import RunFolder
from tests.e2e.conftest import REPOSITORY, environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

SMALLEST = {
    "warm_start.steps": 24, "warm_start.copy_steps": 1, "warm_start.batch_size": 8, "rollout.tasks_per_step": 4,
    "rollout.group_size": 4, "run.steps": 3, "run.eval_every": 3, "run.eval_tasks": 4, "run.seeds": [0],
    "run.record_every": 1, "model.device": "cpu",
}  # fmt: skip
REWARD = "agentic.agent.rewards.exact"
AGENTS = {
    "lookup": {"run": "agentic.agent.tiny.lookup_agent.run", "reward": REWARD, "max_turns": 3, "max_tokens": 40},
    "guess": {"run": "agentic.agent.tiny.baselines.answer_at_once", "reward": REWARD, "max_tokens": 8},
}


def test_two_agents_train_in_one_run(tmp_path: Path) -> None:
    start_model.build(tmp_path / "model", seed=0)
    for split in ("train", "dev"):
        tasks = generate("train" if split == "train" else "dev", 8)
        named = [replace(task, metadata={"agent": list(AGENTS)[i % 2]}) for i, task in enumerate(tasks)]
        write_jsonl(tmp_path / f"{split}.jsonl", named)
    values = SMALLEST | {
        "data.train": tmp_path / "train.jsonl", "data.eval": tmp_path / "dev.jsonl",
        "model.path": tmp_path / "model", "agent.agents": json.dumps(AGENTS),
    }  # fmt: skip
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    out = tmp_path / "run"
    command = [sys.executable, "-m", "core.train.command", "agent", "--preset", "tiny", "--out", str(out), *settings]
    subprocess.run(command, cwd=REPOSITORY, env=environment(), check=True, timeout=100)
    records = list(read_jsonl(out / "seed-0" / "metrics.jsonl"))
    steps = [record for record in records if record["stage"] == "train"]
    assert [record["step"] for record in steps] == [1, 2, 3]
    for record in steps:
        assert record["failures"] == {}
        assert record.get("edited", 0) == record.get("foreign", 0) == record.get("unanswered", 0) == 0
    rollouts = [r for r in read_rollouts(RunFolder(out).rollouts_path(0)) if r.stage == "train"]
    assert rollouts
    for rollout in rollouts:
        assert all(turn.trained for turn in rollout.turns)
    assert [record["stage"] for record in records].count("eval") == 2
