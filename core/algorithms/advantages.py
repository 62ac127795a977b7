"""Group-relative advantages (GRPO, arXiv 2402.03300; without the std: Dr. GRPO, arXiv 2503.20783).

There is one reward per rollout, before a rollout is expanded into rows: a rollout counts once however many rows it
becomes. The numbers are those of slime's `RolloutManager._post_process_rewards` on one group. `statistics.mean` and
`stdev` compute with exact rationals, so a group of equal rewards gets advantages of exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, pvariance, stdev

STD_EPSILON = 1e-6


def group_advantages(
    rewards: Sequence[float | None], *, std_normalization: bool, clip: float | None = None, min_std: float = 0.0
) -> list[float | None]:
    """Return the advantage of each rollout of a group: reward - mean, over (sample std + 1e-6) if `std_normalization`.

    None marks a failed rollout: it leaves the statistics and gets None back. A single valid rollout gets 0. `clip`
    bounds every advantage to +-clip. If the sample std is below `min_std`, every rollout gets None (ToolOrchestra's
    homogeneity filter, arXiv 2511.21689 section 3.2).

    Raises:
        ValueError: a reward is not finite.
    """
    for index, reward in enumerate(rewards):
        if reward is not None and not math.isfinite(reward):
            raise ValueError(
                f"reward {index} of the group is {reward}; give a finite number, or None for a failed rollout"
            )
    valid = [float(reward) for reward in rewards if reward is not None]
    if not valid:
        return [None] * len(rewards)
    baseline = mean(valid)
    std = stdev(valid) if len(valid) > 1 else 0.0
    if std < min_std:
        return [None] * len(rewards)
    scale = std + STD_EPSILON if std_normalization and len(valid) > 1 else 1.0
    bound = math.inf if clip is None else clip
    return [None if reward is None else max(-bound, min(bound, (reward - baseline) / scale)) for reward in rewards]


def keep_most_different(rewards: Sequence[float | None], count: int) -> list[float | None]:
    """Return the rewards, with None for all but the `count` rollouts whose rewards have the largest variance.

    They are some of the highest and some of the lowest rewards: the max-variance down-sampling of PODS (arXiv
    2504.13818). The advantages are then those among the kept rollouts.
    """
    valid = {index: reward for index, reward in enumerate(rewards) if reward is not None}
    if len(valid) <= count:
        return list(rewards)
    order = sorted(valid, key=lambda index: valid[index])
    subsets = [order[:low] + order[len(order) - count + low :] for low in range(count, -1, -1)]
    kept = max(subsets, key=lambda subset: pvariance([valid[index] for index in subset]))
    return [reward if index in kept else None for index, reward in enumerate(rewards)]


def overlong_penalty(tokens: int, max_length: int, buffer: int) -> float:
    """Return what a rollout's reward gets for its length: 0, then a line down to -1 over the last `buffer` tokens.

    This is the soft overlong punishment of DAPO (arXiv 2503.14476, equation 13).
    """
    return max(-1.0, min(0.0, (max_length - buffer - tokens) / buffer))
