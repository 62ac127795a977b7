"""A reward that depends on the group: the loop trains on the regraded rewards, and evaluates on the plain ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.config import Recipe
from core.engine.loop import GRPOLoop
from core.policy.base import Roles
from core.report.run_folder import RunFolder
from core.rollout.method import Method
from core.types import Group, Sampling, Task, Trajectory, Turn


class Always(Method):
    """Asks once and is always right."""

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        completion = await roles["policy"].generate((1, 2), replace(sampling, max_new_tokens=4))
        return Trajectory(task.task_id, (Turn("only", (1, 2), completion, True),), reward=1.0)


def first_is_best(task: Task, group: Group) -> Sequence[Trajectory]:
    assert {t.task_id for t in group} == {task.task_id}
    return [replace(t, reward=float(place == 0)) for place, t in enumerate(group)]


@pytest.mark.parametrize(
    ("regrade", "min_group_std", "signal", "reward"),
    [(None, 0.0, 0.0, 1.0), (first_is_best, 0.0, 1.0, 0.25), (first_is_best, 0.9, 0.0, 0.25)],
)
async def test_training_sees_the_group(
    qwen2: Path, tmp_path: Path, regrade: Any, min_group_std: float, signal: float, reward: float
) -> None:
    recipe = Recipe.model_validate(
        {
            "method": "always",
            "preset": "test",
            "follows": "nothing",
            "model": {"path": str(qwen2), "device": "cpu"},
            "data": {"train": "none", "eval": "none"},
            "rollout": {"tasks_per_step": 2, "group_size": 4},
            "algorithm": {"min_group_std": min_group_std},
            "optimizer": {"lr": 1e-3},
            "engine": {"kv_tokens": 1024},
            "run": {"steps": 1, "eval_every": 1},
        }
    )
    tasks = [Task(f"t{i}", "?", ("x",)) for i in range(2)]
    folder = RunFolder.create(tmp_path / "run", recipe.dump(), fresh=False)
    loop = GRPOLoop(recipe, Always(), None, tasks, tasks, folder, 0, qwen2, regrade=regrade)
    loop._log_trajectory = lambda *_: None  # type: ignore[method-assign]  # there is no tokenizer to show them with
    await loop.run()
    records = [json.loads(line) for path in tmp_path.rglob("metrics.jsonl") for line in path.read_text().splitlines()]
    train = next(record for record in records if record["stage"] == "train")
    assert (train["groups_with_signal"], train["reward"]) == (signal, reward)
    assert (train.get("grad_norm", 0.0) > 0) == bool(signal)
    assert {record["reward"] for record in records if record["stage"] == "eval"} == {1.0}
