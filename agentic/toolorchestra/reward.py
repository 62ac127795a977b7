"""Computes ToolOrchestra's preference reward (arXiv 2511.21689, eq. 1-3): a user's preferences, weighed within a group.

The features of a rollout are its number of calls to each tool or expert (0 if it made none), whether it is right,
minus its cost and minus its latency. Each is scaled to 0..1 over the rollouts of its group (0 if all are equal);
the reward is their sum weighted by the preference vector, and 0 for a wrong answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from agentic.toolorchestra.config import ToolOrchestraRecipe
from core.rollout.method import Regrade, RolloutError
from core.types import CALLS, Group, Task, Trajectory

Features = Mapping[str, float]


def make_regrade(recipe: ToolOrchestraRecipe) -> Regrade:
    """Return `regrade` for a recipe."""
    return partial(regrade, recipe)


def regrade(recipe: ToolOrchestraRecipe, task: Task, group: Group) -> list[Trajectory]:
    """Give a whole group its preference rewards; failed rollouts stay as they are and are not compared.

    The reward of a `route` has its user's price in it already, and stays.
    """
    alive = [t for t in group if t.status != "failed"]
    if not alive or not (weights := preference_weights(recipe, task)):
        return list(group)
    rewards = preference_rewards([trajectory_features(t) for t in alive], weights)
    graded = iter(replace(t, reward=reward) for t, reward in zip(alive, rewards, strict=True))
    return [t if t.status == "failed" else next(graded) for t in group]


def preference_weights(recipe: ToolOrchestraRecipe, task: Task) -> Mapping[str, float]:
    """Return the weights of the record or the recipe; {} if none count. Raises RolloutError (`bad_task`)."""
    config, where = recipe.toolorchestra, f"task {task.task_id}: pref_vec"
    if config.reward == "outcome" or recipe.reward is not None or task.metadata.get("category") == "route":
        return {}
    weights = task.metadata.get("pref_vec") or config.preference
    if not isinstance(weights, Mapping) or not all(
        isinstance(each, int | float) and 0 <= each < math.inf for each in weights.values()
    ):
        raise RolloutError("bad_task", f"{where} must map features to finite weights >= 0, and is {weights!r}")
    features = ("accuracy", "cost", "latency", *config.aliases, *config.tools)
    if not any(map(weights.get, features)):
        raise RolloutError("bad_task", f"{where} weighs none of {', '.join(features)}")
    return weights


def trajectory_features(trajectory: Trajectory) -> dict[str, float]:
    """Return a rollout's features under the names of preference vectors."""
    metrics = trajectory.metrics
    calls = {name.removeprefix(CALLS): int(n) for name, n in metrics.items() if name.startswith(CALLS)}
    return make_features(
        correct=metrics["correct"] > 0, cost=metrics["cost"], latency=metrics["latency"], calls=Counter(calls)
    )


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
