"""Computes ToolOrchestra's preference reward (arXiv 2511.21689, eq. 1-3): a user's preferences, weighed within a group.

The features of a rollout are its number of calls to each tool or expert (0 if it made none), whether it is right,
minus its cost and minus its latency. Each is scaled to 0..1 over the rollouts of its group (0 if all are equal);
the reward is their sum weighted by the preference vector, and 0 for a wrong answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Features = Mapping[str, float]


def make_features(*, correct: bool, cost: float, latency: float, calls: Mapping[str, int]) -> dict[str, float]:
    """Return M of eq. 2 under the names that preference vectors use. `cost` and `latency` may have any unit."""
    return {**calls, "accuracy": float(correct), "cost": -cost, "latency": -latency}


def scale_features(group: Sequence[Features]) -> list[dict[str, float]]:
    """Scale each feature to 0..1 between its least and greatest value in the group; 0 if these are equal.

    A feature that a rollout lacks counts as 0: it never called that tool.

    Raises:
        ValueError: a feature is not finite.
    """
    names = list(dict.fromkeys(name for one in group for name in one))
    columns = {name: [float(one.get(name, 0.0)) for one in group] for name in names}
    for name, values in columns.items():
        if not all(map(math.isfinite, values)):
            raise ValueError(f"feature {name!r} is not finite in a rollout of the group: {values}")
    lowest = {name: min(values) for name, values in columns.items()}
    width = {name: max(values) - lowest[name] for name, values in columns.items()}
    return [
        {name: (columns[name][i] - lowest[name]) / width[name] if width[name] > 0 else 0.0 for name in names}
        for i in range(len(group))
    ]


def preference_rewards(group: Sequence[Features], weights: Mapping[str, float]) -> list[float]:
    """Return the reward (eq. 3) of each rollout of a group. Weights and features without a partner count nothing."""
    return [
        sum(weights.get(name, 0.0) * value for name, value in one.items()) if raw.get("accuracy", 0.0) > 0 else 0.0
        for raw, one in zip(group, scale_features(group), strict=True)
    ]
