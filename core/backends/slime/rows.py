"""Makes slime's training data from container Samples, so that slime's loss equals ours for every `loss_agg`.

slime 0.3 (`get_sum_of_sample_mean` and `loss_function` in backends/megatron_utils) computes, for one optimizer step,

    loss = 1/G * sum over rows i of 1/max(d_i, 1) * sum_t(mask * x)

with G = `--global-batch-size`, counted in distinct `rollout_ids`, and d_i = `rollout_mask_sums[i]`. Ours is

    loss = sum over rows i of s_i * sum_t(mask * x)

with s = `core.algorithms.aggregate.row_scales` of the step's rows. They are equal when d_i = 1 / (G * s_i). Take R
rollouts; rollout r has T_r trained tokens in n_r rows, row i has t_i of them; N rows and T tokens in all. Then

    rollout       d_i = R/G * T_r           rollout_turn  d_i = R/G * n_r * t_i
    turn          d_i = N/G * t_i           token         d_i = T/G
    constant      d_i = R/G * L, where L is `algorithm.max_response_length`

This has consequences in slime:

- Every rollout keeps a row, a masked one if nothing of it is trained: slime starts a new step after every G distinct
  rollout ids and drops the rest.
- slime splits a batch into steps in order, while our trainer shuffles it first. Each step is averaged by itself.
- slime raises d_i to at least 1. That shrinks the loss of rows or rollouts of fewer than G/R tokens (`turn`: G/N): of
  one token where a rollout failed, of more only in a step where most did.
- `--calculate-per-token-loss` stays off: slime would ignore the d_i.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from core.algorithms.aggregate import row_scales
from core.backends.rollouts import NOTES, credit_rollouts
from core.backends.slime.samples import SlimeSample, group_samples, read_outcome, read_reward, read_trajectory
from core.config import AlgorithmSection
from core.rollout.rows import rows_from_groups
from core.types import Group, Row, Trajectory


def make_train_data(
    samples: Sequence[SlimeSample],
    algorithm: AlgorithmSection,
    *,
    rollouts_per_step: int,
    reward_key: str | None = None,
    regrade: Callable[[Sequence[SlimeSample], Group], Sequence[Trajectory]] | None = None,
) -> dict[str, list[Any]]:
    """Make slime's training data: lists with one entry for each row, rollouts in order of their groups.

    We omit `truncated`: slime would log its per-row mean under the name of our per-rollout metric
    (core/backends/slime/bridge.py).

    `regrade` takes the Samples of a group and their Trajectories, and returns the Trajectories with new rewards.
    """
    groups = group_samples(samples)
    rollouts = [sample for group in groups for sample in group]
    trajectories: list[Group] = [[read_trajectory(sample, reward_key) for sample in group] for group in groups]
    if regrade is not None:
        trajectories = [regrade(*pair) for pair in zip(groups, trajectories, strict=True)]
    by_rollout: dict[int, list[Row]] = defaultdict(list)
    for row in rows_from_groups(trajectories, **algorithm.row_options()):
        by_rollout[row.rollout_id].append(row)
    # rows_by_rollout[r] are the rows of rollouts[r]; a row's `rollout_id` is this r.
    rows_by_rollout = [by_rollout[r] or [make_masked_row(r)] for r in range(len(rollouts))]
    rows = [row for rows_of_one in rows_by_rollout for row in rows_of_one]
    owners = [rollouts[row.rollout_id] for row in rows]
    denominators: list[float] = []
    for first in range(0, len(rollouts), rollouts_per_step):  # one optimizer step: `rollouts_per_step` rollouts
        step = [row for part in rows_by_rollout[first : first + rollouts_per_step] for row in part]
        length = algorithm.max_response_length or 1
        scales = row_scales(step, algorithm.loss_agg, length)  # 0 for a row without a trained token
        denominators += [1 / (rollouts_per_step * scale) if scale else 1.0 for scale in scales]
    return {
        "tokens": [list(row.tokens) for row in rows],
        "response_lengths": [len(row.loss_mask) for row in rows],
        "loss_masks": [list(row.loss_mask) for row in rows],
        "rollout_log_probs": [list(row.logprobs) for row in rows],
        "rewards": [row.advantage for row in rows],
        "raw_reward": [read_reward(sample, reward_key) for sample in owners],
        "sample_indices": [sample.index for sample in owners],
        "rollout_ids": [row.rollout_id for row in rows],
        "rollout_mask_sums": denominators,
    }


def make_masked_row(rollout_id: int) -> Row:
    """Make a row that holds a rollout's place and adds nothing to the loss."""
    return Row(tokens=(0, 0), loss_mask=(0,), logprobs=(0.0,), advantage=0.0, rollout_id=rollout_id)


def post_process_rewards(
    samples: Sequence[SlimeSample], algorithm: AlgorithmSection, reward_key: str | None = None
) -> tuple[list[float], list[float]]:
    """Return the raw rewards and the advantages of fanned-out Samples.

    Each rollout counts once in its group, and all its Samples get its advantage. Removed rollouts leave the statistics
    and get 0. slime's own function reshapes by position, which would mix groups of uneven size.
    """
    advantages: dict[int | None, float] = {}
    for group in group_samples(samples):
        parts = {sample.rollout_id: sample for sample in group}  # one of each rollout
        rollouts = [read_outcome(sample, reward_key) for sample in parts.values()]
        credited = credit_rollouts(rollouts, [sample.metadata[NOTES] for sample in parts.values()], algorithm)
        advantages.update((rollout, advantage or 0.0) for rollout, advantage in zip(parts, credited, strict=True))
    return [read_reward(s, reward_key) for s in samples], [advantages[s.rollout_id] for s in samples]
