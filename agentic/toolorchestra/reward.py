"""Rewards a group by the preference of its user; the features are compared within the group
(preference.py)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from agentic.toolorchestra.config import ToolOrchestraRecipe
from agentic.toolorchestra.preference import make_features, preference_rewards
from core.rollout.method import Regrade, RolloutError
from core.types import CALLS, Group, Task, Trajectory


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
