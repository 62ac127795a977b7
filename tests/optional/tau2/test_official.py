"""tau2's own tool reads our result files, grades them as we recorded and finds the same pass^k."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentic.toolorchestra.tau2.client import Workers
from agentic.toolorchestra.tau2.environment import tau2_tasks
from benchmarks.harness.run import OpenVariant
from benchmarks.tau2 import evaluate
from core.policy.base import Roles
from core.rollout.method import Method
from core.runs.run_folder import RunFolder
from core.types import Sampling, Task, Trajectory, derive_seed

from .play import make_tokenizer, rollout, without_solution

pytestmark = [pytest.mark.optional, pytest.mark.timeout(900)]

METRICS = """
import sys
from pathlib import Path
from tau2.data_model.simulation import Results
from tau2.metrics.agent_metrics import compute_metrics
print("METRICS" + compute_metrics(Results.load(Path(sys.argv[1]))).model_dump_json())
"""


@dataclass(frozen=True)
class Official:
    """tau2's own tools on our result files. `graded` is where `evaluate-trajs` writes."""

    python: str
    data: str
    graded: Path

    def run(self, *command: str) -> str:
        environment = {**os.environ, "TAU2_DATA_DIR": self.data, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        done = subprocess.run(
            [self.python, *command], env=environment, cwd=self.graded.parent, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def rewards(self, path: Path) -> tuple[list[float], list[float]]:
        """Return them as we recorded them, and as `evaluate-trajs` grades them again."""
        self.run("-m", "tau2.cli", "evaluate-trajs", str(path), "-o", str(self.graded))
        return rewards(path), rewards(self.graded / f"updated_{path.name}")

    def metrics(self, path: Path) -> dict[str, Any]:
        """Return what tau2's compute_metrics makes of the file that `evaluate-trajs` wrote."""
        output = self.run("-c", METRICS, str(self.graded / f"updated_{path.name}"))
        found: dict[str, Any] = json.loads(output.partition("METRICS")[2])
        return found


def rewards(path: Path) -> list[float]:
    return [simulation["reward_info"]["reward"] for simulation in json.loads(path.read_text())["simulations"]]


@pytest.fixture
def official(tau2_place: tuple[str, str], tmp_path: Path) -> Official:
    return Official(*tau2_place, tmp_path / "graded")


def test_doing_nothing_is_graded_alike(official: Official, tmp_path: Path) -> None:
    out, domains = tmp_path / "run", ["airline", "telecom", "telecom-solo"]
    where = ["--tau2-python", official.python, "--tau2-data", official.data, "--processes", "1", "--out", str(out)]
    assert evaluate.main(["--variants", "do-nothing", "--domains", *domains, "--tasks", "8", *where]) == 0
    for domain in domains:
        ours, theirs = official.rewards(out / "official" / f"do-nothing_{domain}.json")
        assert ours == theirs
        assert sum(ours) == {"airline": 6, "telecom": 0, "telecom-solo": 0}[domain]


class Scripted(Method):
    """The whole method with a scripted orchestrator: task number i of a domain is solved in the first i % 4 of three
    trials, by itself in the first and by an expert in the others. In the rest it only claims that it is done."""

    def __init__(self, workers: Workers, order: Mapping[str, int]):
        self.workers, self.order = workers, order

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        trial = [derive_seed(0, "tau2", task.task_id, trial) for trial in range(3)].index(sampling.seed or 0)
        solves = trial < self.order[task.task_id] % 4
        return await rollout(task if solves else without_solution(task), self.workers, by_expert=trial > 0)


def test_an_agents_calls_over_several_trials_are_graded_alike(
    official: Official, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: dict[str, int] = {}

    async def ungraded_by_words(*where: Any, **which: Any) -> list[Task]:
        """tau2's tool would ask a model to judge the others."""
        tasks = [task for task in await tau2_tasks(*where, **which) if not task.metadata["criteria"]["nl_assertions"]]
        order.update({task.task_id: number for number, task in enumerate(tasks)})
        return tasks

    @asynccontextmanager
    async def open_scripted(plan: object, cell: object, workers: Workers) -> AsyncIterator[OpenVariant]:
        yield OpenVariant(Scripted(workers, order), {}, make_tokenizer())

    monkeypatch.setattr(evaluate, "tau2_tasks", ungraded_by_words)
    monkeypatch.setattr(evaluate, "open_variant", open_scripted)
    out, model = tmp_path / "run", tmp_path / "model"
    model.mkdir()  # of which only the length of its context is asked
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3", "max_position_embeddings": 40960}))
    options = [
        *("--protocol", "experts", "--variants", "experts", "--domains", "retail", "telecom", "--tasks", "8"),
        *("--trials", "3", "--model", str(model), "--user", "scripted", "--out", str(out)),
        *("--tau2-python", official.python, "--tau2-data", official.data, "--processes", "2"),
    ]
    assert evaluate.main(options) == 0
    found = {result.data: result.notes for result in RunFolder(out).evaluations()}
    for domain in ("retail", "telecom"):
        numbers = found[f"tau2-{domain}"]
        assert (numbers["trials"], numbers["errors"]) == (3, {})
        path = out / "official" / f"experts_{domain}.json"
        ours, theirs = official.rewards(path)
        assert ours == theirs
        solved = {task.partition("/")[2]: place % 4 for task, place in order.items() if task.startswith(domain)}
        assert solved_trials(path) == dict(list(solved.items())[:8])
        metrics = official.metrics(path)
        assert (metrics["total_simulations"], metrics["infra_error_count"]) == (24, 0)
        assert metrics["avg_reward"] == pytest.approx(0.5)
        assert metrics["correct_write_actions"] > 8
        expected = {"1": 1 / 2, "2": 1 / 3, "3": 1 / 4}
        assert metrics["pass_hat_ks"] == pytest.approx(expected)
        assert {k: numbers[f"pass^{k}"][domain]["mean"] for k in "123"} == pytest.approx(expected)


def solved_trials(path: Path) -> dict[str, int]:
    """Task -> how many of its trials scored 1."""
    results = json.loads(path.read_text())
    counts = {task["id"]: 0 for task in results["tasks"]}
    for simulation in results["simulations"]:
        counts[simulation["task_id"]] += simulation["reward_info"]["reward"] == 1.0
    return counts
