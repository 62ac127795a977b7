"""Containers into slime's training data: the embedded backend's rows and loss, also with rewards within the group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from core.algorithms.aggregate import row_scales
from core.backends.slime.bridge import SlimeBridge
from core.backends.slime.rows import make_train_data, post_process_rewards
from core.backends.slime.samples import fan_out, fill_sample
from core.config import AlgorithmSection, Recipe
from core.rollout.method import MethodSpec
from core.rollout.rows import rows_from_groups
from core.types import Group, LossAgg, Task, Trajectory
from tests.unit.backends.slime.conftest import as_samples, trajectory, turn
from tests.unit.backends.slime.standin import Sample, arguments, read_rows
from tests.unit.backends.slime.test_hooks import RECIPE


def slime_scales(data: dict[str, list[Any]], rollouts_per_step: int) -> list[float]:
    """slime's factor of a row's sum over trained tokens (get_sum_of_sample_mean, loss_function)."""
    columns = zip(data["rollout_mask_sums"], data["loss_masks"], strict=True)
    return [1 / (max(d, 1) * rollouts_per_step) if any(mask) else 0.0 for d, mask in columns]


@pytest.mark.parametrize("std_normalization", [True, False])
@pytest.mark.parametrize("split", [False, True])
def test_rows_are_those_of_the_embedded_engine(
    batch: list[list[Trajectory]], samples: list[Sample], std_normalization: bool, split: bool
) -> None:
    algorithm = AlgorithmSection(name="grpo", std_normalization=std_normalization, split_advantage=split)
    data = make_train_data(samples, algorithm, rollouts_per_step=12)
    ours = rows_from_groups(batch, std_normalization=std_normalization, split_advantage=split)
    assert [row for row in read_rows(data) if row.trained_tokens] == ours
    masked = {row.rollout_id for row in read_rows(data) if not row.trained_tokens}
    assert masked == set(range(12)) - {row.rollout_id for row in ours}


def test_groups_may_come_in_any_order(samples: list[Sample]) -> None:
    mixed = [samples[i] for i in (0, 4, 1, 5, 2, 6, 3, 7, 8, 9, 10, 11)]
    together = make_train_data(samples, AlgorithmSection(name="grpo"), rollouts_per_step=12)
    assert make_train_data(mixed, AlgorithmSection(name="grpo"), rollouts_per_step=12) == together


@pytest.mark.parametrize("unit", get_args(LossAgg))
@pytest.mark.parametrize("rollouts_per_step", [4, 12])
def test_slimes_factors_are_ours(samples: list[Sample], unit: LossAgg, rollouts_per_step: int) -> None:
    """Each step of `rollouts_per_step` rollouts by itself; the third of three has no gradient at all."""
    algorithm = AlgorithmSection(name="grpo", loss_agg=unit, max_response_length=50)
    data = make_train_data(samples, algorithm, rollouts_per_step=rollouts_per_step)
    ours = [
        scale
        for first in range(0, 12, rollouts_per_step)
        for scale in row_scales(
            [row for row in read_rows(data) if first <= row.rollout_id < first + rollouts_per_step], unit, 50
        )
    ]
    clamped = [d < 1 for d in data["rollout_mask_sums"]]
    for index, (slime, our) in enumerate(zip(slime_scales(data, rollouts_per_step), ours, strict=True)):
        assert slime == pytest.approx(our, rel=1e-12) or (clamped[index] and slime < our)


def test_a_batch_without_any_gradient_is_masked_rows() -> None:
    samples = as_samples([[trajectory(None, failure="engine")] * 4])
    data = make_train_data(samples, AlgorithmSection(name="grpo"), rollouts_per_step=4)
    assert data["tokens"] == [[0, 0]] * 4
    assert data["loss_masks"] == [[0]] * 4
    assert data["rollout_mask_sums"] == [1.0] * 4
    assert data["rollout_ids"] == [0, 1, 2, 3]


@pytest.mark.parametrize("split", [False, True])
def test_fanned_out_rewards_are_normalised_once_for_each_rollout(
    batch: list[list[Trajectory]], samples: list[Sample], split: bool
) -> None:
    algorithm = AlgorithmSection(name="grpo", split_advantage=split)
    parts = [part for sample in samples for part in fan_out(sample, "turn")]
    raw, advantages = post_process_rewards(parts, algorithm)
    ours = {
        row.rollout_id: row.advantage for row in rows_from_groups(batch, std_normalization=True, split_advantage=split)
    }
    for part, advantage in zip(parts, advantages, strict=True):
        if any(part.loss_mask) and not part.remove_sample:
            assert advantage == ours[part.rollout_id - 100]
        if part.remove_sample:
            assert advantage == 0.0
    assert raw == [part.reward for part in parts]


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


@pytest.mark.usefixtures("slime_modules")
def test_the_filter_sees_the_rewards_within_the_group() -> None:
    hooks, args = SlimeBridge(SPEC), arguments(RECIPE)
    first, second = samples()[:4], samples()[4:]
    assert hooks.dynamic_filter(args, first).keep
    assert not hooks.dynamic_filter(args, second).keep
    strict = arguments({**RECIPE, "algorithm": {"name": "grpo", "min_group_std": 5.0}})
    assert not SlimeBridge(SPEC).dynamic_filter(strict, first).keep


@pytest.mark.usefixtures("slime_modules")
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
