"""A reward within the group, and merged rows, on slime as on the embedded backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from core.backends.slime.bridge import SlimeBridge
from core.backends.slime.samples import fill_sample
from core.config import Recipe
from core.rollout.method import MethodSpec
from core.rollout.rows import rows_from_groups
from core.types import Group, Task, Trajectory
from tests.unit.backends.slime.conftest import as_samples, trajectory, turn
from tests.unit.backends.slime.standin import Sample, arguments
from tests.unit.backends.slime.test_hooks import RECIPE, filter_output

__all__ = ["filter_output"]


def by_turns(recipe: Recipe, task: Task, group: Group) -> Sequence[Trajectory]:
    """Pays for few turns what the task says; nothing if wrong."""
    bonus = float(task.metadata["bonus"])
    return [t if t.status == "failed" else replace(t, reward=(t.reward or 0) * bonus / len(t.turns)) for t in group]


SPEC = MethodSpec("one_turn", Recipe, Path(), lambda recipe, tokenizer: None, regrade=lambda r: partial(by_turns, r))  # type: ignore[arg-type, return-value]


def groups() -> list[list[Trajectory]]:
    growing = (turn(1, 2, prompt=(7,)), turn(3, prompt=(7, 1, 2, 9)))
    lost, wrong = trajectory(None, failure="engine"), trajectory(0.0, turn(5))
    return [
        [trajectory(1.0, *growing), trajectory(1.0, turn(4)), lost, wrong],
        [trajectory(1.0, turn(1)), trajectory(1.0, turn(2)), trajectory(1.0, turn(3)), trajectory(1.0, turn(4))],
    ]


def samples(bonus: float = 2.0) -> list[Sample]:
    filled = as_samples(groups())
    for sample in filled:
        task = {"task_id": f"t{sample.group_index}", "question": "q", "answers": ["a"], "metadata": {"bonus": bonus}}
        sample.metadata |= task
    return filled


@pytest.mark.parametrize("rows", ["turn", "segment"])
def test_convert_grades_within_the_group_as_the_embedded_engine_does(rows: Any) -> None:
    recipe = {**RECIPE, "algorithm": {"name": "grpo", "rows": rows, "advantage_clip": 0.5}}
    data = SlimeBridge(SPEC).convert(arguments(recipe), samples())
    task = Task("t", "q", ("a",), metadata={"bonus": 2.0})
    graded = [by_turns(Recipe.model_validate(recipe), task, group) for group in groups()]
    ours = rows_from_groups(graded, std_normalization=True, split_advantage=False, advantage_clip=0.5, rows=rows)
    trained = [i for i, mask in enumerate(data["loss_masks"]) if any(mask)]
    assert [data["rewards"][i] for i in trained] == [row.advantage for row in ours]
    assert [data["tokens"][i] for i in trained] == [list(row.tokens) for row in ours]
    assert [data["loss_masks"][i] for i in trained] == [list(row.loss_mask) for row in ours]
    assert data["raw_reward"][0] == 1.0
    assert max(row.advantage for row in ours) == 0.5


@pytest.mark.usefixtures("filter_output")
def test_the_filter_sees_the_rewards_within_the_group() -> None:
    hooks, args = SlimeBridge(SPEC), arguments(RECIPE)
    first, second = samples()[:4], samples()[4:]
    assert hooks.dynamic_filter(args, first).keep
    assert not hooks.dynamic_filter(args, second).keep
    strict = arguments({**RECIPE, "algorithm": {"name": "grpo", "min_group_std": 5.0}})
    assert not SlimeBridge(SPEC).dynamic_filter(strict, first).keep


@pytest.mark.usefixtures("filter_output")
def test_a_group_whose_record_is_broken_stays_failed() -> None:
    hooks, args, made = SlimeBridge(SPEC), arguments(RECIPE), samples()
    lost = made[4:]
    for sample in lost:
        sample.prompt, sample.metadata = "", {}
        fill_sample(sample, trajectory(None, failure="bad_task"), reward_key=None)
    assert not hooks.dynamic_filter(args, lost).keep
    data = hooks.convert(args, made)
    of_lost = {data["rollout_ids"][i] for i, mask in enumerate(data["loss_masks"]) if not any(mask)}
    assert {4, 5, 6, 7} <= of_lost
    assert any(any(mask) for mask in data["loss_masks"])
