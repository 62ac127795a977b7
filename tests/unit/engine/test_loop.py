"""What a step of the loop records: rewards that compare a group, groups without a signal, events, and their counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.config import Recipe
from core.engine.loop import GRPOLoop
from core.policy.base import Roles
from core.report.summary import build_summary
from core.rollout.method import Method
from core.runs.files import Record
from core.runs.run_folder import RunFolder
from core.types import Group, Sampling, Task, Trajectory, Turn


class Given(Method):
    """Asks once. The reward of a rollout is that of its task, by task id; `metrics` are those of every rollout."""

    def __init__(self, rewards: Mapping[str, Sequence[float]] | None = None, **metrics: float):
        self.rewards = {task: list(values) for task, values in (rewards or {}).items()}
        self.metrics = metrics

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        left = self.rewards.get(task.task_id)
        reward = left.pop(0) if left else 1.0
        completion = await roles["policy"].generate((1, 2), replace(sampling, max_new_tokens=4))
        turns = (Turn("only", (1, 2), completion, True),)
        return Trajectory(task.task_id, turns, reward=reward, metrics=self.metrics)


def first_is_best(task: Task, group: Group) -> Sequence[Trajectory]:
    assert {t.task_id for t in group} == {task.task_id}
    return [replace(t, reward=float(place == 0)) for place, t in enumerate(group)]


async def one_step(
    model: Path, out: Path, method: Method, sections: Mapping[str, Any] | None = None, regrade: Any = None
) -> tuple[Record, Record, RunFolder]:
    """The records of the only training step and of the last evaluation, on four tasks, two of them a step."""
    recipe = Recipe.model_validate(
        {
            "method": "given",
            "preset": "test",
            "follows": "nothing",
            "model": {"path": str(model), "device": "cpu"},
            "data": {"train": "none", "eval": "none", "shuffle": False},
            "algorithm": {"name": "grpo", "kl_loss_coef": 0},
            "optimizer": {"lr": 1e-3},
            "engine": {"kv_tokens": 1024},
            "run": {"steps": 1, "eval_every": 1},
            **(sections or {}),
            "rollout": {"tasks_per_step": 2, "group_size": 4, **(sections or {}).get("rollout", {})},
        }
    )
    tasks = [Task(f"t{i}", "?", ("x",)) for i in range(4)]
    folder = RunFolder.create(out, recipe.dump())
    loop = GRPOLoop(recipe, method, None, tasks, tasks[:2], folder, 0, model, regrade=regrade)
    loop._log_trajectory = lambda *_: None  # type: ignore[method-assign]  # there is no tokenizer to show them with
    await loop.run()
    records = folder.read_metrics(0)
    train = next(record for record in records if record["stage"] == "train")
    return train, records[-1], folder


@pytest.mark.parametrize(
    ("regrade", "min_group_std", "signal", "reward"),
    [(None, 0.0, 0.0, 1.0), (first_is_best, 0.0, 1.0, 0.25), (first_is_best, 0.9, 0.0, 0.25)],
)
async def test_training_sees_the_group_and_evaluation_the_rollout(
    qwen2: Path, tmp_path: Path, regrade: Any, min_group_std: float, signal: float, reward: float
) -> None:
    sections = {"algorithm": {"name": "grpo", "kl_loss_coef": 0, "min_group_std": min_group_std}}
    train, evaluated, _ = await one_step(qwen2, tmp_path, Given(), sections, regrade)
    assert (train["groups_with_signal"], train["reward"]) == (signal, reward)
    assert (train.get("grad_norm", 0.0) > 0) == bool(signal)
    assert evaluated["reward"] == 1.0


async def test_groups_that_a_filter_leaves_out_stay_in_the_figures(qwen2: Path, tmp_path: Path) -> None:
    """t0 has no signal and t2 takes its place: two of three groups have one."""
    rewards = {"t0": [0.0] * 5, "t1": [1.0] * 2 + [0.0, 1.0, 0.0], "t2": [1.0, 1.0, 0.0, 0.0]}
    sections = {"algorithm": {"name": "grpo", "kl_loss_coef": 0, "dynamic_sampling": True}}
    train, _, _ = await one_step(qwen2, tmp_path, Given(rewards), sections)
    assert train["tasks"] == ["t0", "t1", "t2"]
    assert train["rows"] == 8
    assert train["groups_with_signal"] == pytest.approx(2 / 3)
    first = 1.0 + 0.0 + 1.0 + 0.0  # of t1's rewards the first went to the evaluation before training
    assert train["reward"] == pytest.approx((0.0 + first + 2.0) / 12)


async def test_drift_is_counted_and_other_metrics_are_averaged(qwen2: Path, tmp_path: Path) -> None:
    train, evaluated, folder = await one_step(qwen2, tmp_path, Given(drift=2.0, turns=3.0))
    assert (train["drift"], train["turns"]) == (16.0, 3.0)
    assert (evaluated["drift"], evaluated["turns"]) == (4.0, 3.0)
    assert build_summary(folder)["counts"] == {"failures": {}, "drift": {"total": 16}}
