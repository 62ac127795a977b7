"""Statistics of repeated samples of each task: pass@j, pass^k, paired differences, means over groups of tasks.

Intervals are those of core/report/stats.py over tasks. They say nothing about another set of samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from core.report.stats import Estimate, difference_ci, mean_ci
from core.runs.evaluation import EvalResult


def pass_at(n: int, c: int, j: int) -> float:
    """Return the chance that of `j` samples drawn from `n`, `c` of them right, at least one is right."""
    return 1.0 - math.comb(n - c, j) / math.comb(n, j)


def pass_hat(n: int, c: int, k: int) -> float:
    """Return the chance that all of `k` samples drawn from `n`, `c` of them right, are right."""
    return math.comb(c, k) / math.comb(n, k)


def paired_difference(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Estimate | None:
    """Return the mean difference over the tasks that both have; None without any.

    Scores lie in [0, 1].
    """
    common = [task for task in ours if task in theirs]
    if not common:
        return None
    return difference_ci([[ours[task] for task in common]], [[theirs[task] for task in common]])


def score_seeds(results: Sequence[EvalResult]) -> Estimate:
    """Return the mean official score of the results of several seeds."""
    scores = [result.scores["official"] for result in results]
    return mean_ci(scores, tasks=[result.notes["task_ids"] for result in results])


def group_means(scores: Mapping[str, Sequence[float]]) -> dict[str, Estimate]:
    """Return the mean of each group of tasks, `micro` over all tasks and `macro` over the groups.

    The interval of a weighted mean follows from those of its groups, which are independent (MOVER).
    """
    groups = {group: mean_ci([values]) for group, values in scores.items()}
    total = sum(found.n for found in groups.values())
    weights = {
        "micro": {group: found.n / total for group, found in groups.items()},
        "macro": dict.fromkeys(groups, 1 / len(groups)),
    }
    return {**groups, **{name: _weighted_mean(groups, weight) for name, weight in weights.items()}}


def _weighted_mean(groups: Mapping[str, Estimate], weights: Mapping[str, float]) -> Estimate:
    mean = math.fsum(weight * groups[group].mean for group, weight in weights.items())
    below = math.hypot(*(weight * (groups[group].mean - groups[group].low) for group, weight in weights.items()))
    above = math.hypot(*(weight * (groups[group].high - groups[group].mean) for group, weight in weights.items()))
    return Estimate(mean, mean - below, mean + above, sum(found.n for found in groups.values()))
