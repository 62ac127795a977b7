"""Container Samples into slime's training data, so that slime's loss is ours for every loss unit.

slime 0.3 (`get_sum_of_sample_mean` and `loss_function` of backends/megatron_utils) reduces one optimizer step to

    loss = 1/G * sum over rows i of 1/max(d_i, 1) * sum_t(mask * x)

with G = `--global-batch-size`, counted in distinct `rollout_ids`, and d_i = `rollout_mask_sums[i]`. Ours is

    loss = sum over rows i of s_i * sum_t(mask * x)

with s = `core.algorithms.aggregate.row_scales` of the step's rows. They are equal when d_i = 1 / (G * s_i), which for R
rollouts with T_r trained tokens in n_r rows of t_i tokens, N rows and T tokens in all, reads

    rollout       d_i = R/G * T_r           rollout_turn  d_i = R/G * n_r * t_i
    turn          d_i = N/G * t_i           token         d_i = T/G

What follows for slime:

- Every rollout keeps a row, a masked one if nothing of it is trained: slime cuts steps at every G distinct rollout ids
  and drops what is left over.
- A batch of several steps is cut in order (slime), not shuffled first (ours), and each step is averaged by itself.
- slime raises d_i to 1. That shrinks the loss of rows or rollouts of fewer than G/R tokens (`turn`: G/N), which takes a
  step where most rollouts failed.
- `--calculate-per-token-loss` stays off: slime would ignore the d_i.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from core.algorithms.advantages import group_advantages
from core.algorithms.aggregate import LossUnit, row_scales
from core.config import AlgorithmSection
from core.rollout.rows import rows_from_groups
from core.slime.samples import NOTES, by_group, reward_of, trajectory_of
from core.types import Group, Row, Trajectory


def train_data(
    samples: Sequence[Any],
    algorithm: AlgorithmSection,
    *,
    rollouts_per_step: int,
    reward_key: str | None = None,
    regrade: Callable[[Sequence[Any], Group], Sequence[Trajectory]] | None = None,
) -> dict[str, list[Any]]:
    """slime's training data: lists with one entry for each row, rollouts in order of their groups.

    Without `truncated`, of which slime would log a mean over rows by the name of ours over rollouts (core.slime.log).

    `regrade` takes the samples of a group and their trajectories, and gives these their rewards within the group.
    """
    groups = by_group(samples)
    rollouts = [sample for group in groups for sample in group]
    trajectories: list[Group] = [[trajectory_of(sample, reward_key) for sample in group] for group in groups]
    if regrade is not None:
        trajectories = [regrade(group, made) for group, made in zip(groups, trajectories, strict=True)]
    by_rollout: dict[int, list[Row]] = defaultdict(list)
    for row in rows_from_groups(trajectories, **algorithm.rows()):
        by_rollout[row.rollout_id].append(row)
    kept = [by_rollout[number] or [masked_row(number)] for number in range(len(rollouts))]
    rows = [row for of_rollout in kept for row in of_rollout]
    owners = [rollouts[row.rollout_id] for row in rows]
    denominators = [
        denominator
        for first in range(0, len(kept), rollouts_per_step)
        for denominator in loss_denominators(
            [row for of_rollout in kept[first : first + rollouts_per_step] for row in of_rollout],
            algorithm.loss_unit,
            rollouts_per_step,
        )
    ]
    return {
        "tokens": [list(row.tokens) for row in rows],
        "response_lengths": [len(row.loss_mask) for row in rows],
        "loss_masks": [list(row.loss_mask) for row in rows],
        "rollout_log_probs": [list(row.logprobs) for row in rows],
        "rewards": [row.advantage for row in rows],
        "raw_reward": [reward_of(sample, reward_key) for sample in owners],
        "sample_indices": [sample.index for sample in owners],
        "rollout_ids": [row.rollout_id for row in rows],
        "rollout_mask_sums": denominators,
    }


def masked_row(rollout_id: int) -> Row:
    """A row that holds a rollout's place and adds nothing."""
    return Row(tokens=(0, 0), loss_mask=(0,), logprobs=(0.0,), advantage=0.0, rollout_id=rollout_id)


def loss_denominators(rows: Sequence[Row], unit: LossUnit, rollouts_per_step: int) -> list[float]:
    """d_i of the rows of one optimizer step; 1 for a row without a trained token."""
    return [1 / (rollouts_per_step * scale) if scale else 1.0 for scale in row_scales(rows, unit)]


def post_process_rewards(
    samples: Sequence[Any], algorithm: AlgorithmSection, reward_key: str | None = None
) -> tuple[list[float], list[float]]:
    """Rewards and advantages of fanned-out Samples: one reward for each rollout, normalised in its group, then shared.

    Removed rollouts leave the statistics and get 0. slime's own reshapes by position, which mixes uneven groups.
    """
    advantages: dict[int, float] = {}
    for group in by_group(samples):
        first_parts = {sample.rollout_id: sample for sample in reversed(group)}
        rewards = [None if s.remove_sample else reward_of(s, reward_key) for s in first_parts.values()]
        normalised = group_advantages(
            rewards, std_norm=algorithm.std_norm, clip=algorithm.advantage_clip, min_std=algorithm.min_group_std
        )
        for sample, advantage in zip(first_parts.values(), normalised, strict=True):
            turns = max(1, sample.metadata[NOTES]["turns"]) if algorithm.credit == "split" else 1
            advantages[sample.rollout_id] = (advantage or 0.0) / turns
    return [reward_of(s, reward_key) for s in samples], [advantages[s.rollout_id] for s in samples]
