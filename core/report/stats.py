"""This module computes means and differences with 95% intervals over seeds and tasks, and the score kept per turn."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Z95 = 1.959964
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Holds the 97.5% quantiles of Student's t for 1 to 15 degrees of freedom; the last serves for more, a bit too wide."""

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of scores, or of their differences, with its 95% interval.

    `n` counts the values, which are tasks over all seeds.
    """

    mean: float
    low: float
    high: float
    n: int

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as summary.json holds it."""
        return {"mean": self.mean, "ci95": [self.low, self.high], "n": self.n}


Tasks = Sequence[Sequence[Hashable]]
"""Names the task behind each value of each seed."""


def mean_ci(scores_by_seed: Sequence[Sequence[float]], *, tasks: Tasks | None = None) -> Estimate:
    """Return the mean over seeds and tasks with its 95% interval. Scores lie in [0, 1]; each seed has the same weight.

    With one seed, the interval covers the spread between tasks: Wilson's when every score is 0 or 1 or all are equal,
    otherwise a seeded percentile bootstrap. It says nothing about training another seed.

    With several seeds, the interval is Student's t over the seed means. It covers the spread between seeds and, because
    each seed has its own tasks, the spread between tasks. A hierarchical bootstrap draws the few seeds with replacement
    and would be too narrow by sqrt((S - 1) / S) for S seeds, even before any correction for the tails. Seed means that
    are equal would give an interval without width, so neither side is narrower than that of the interval over all tasks
    together. A task that several seeds have counts once there, with its mean over them. Without `tasks`, all differ.

    Raises ValueError when a seed has no scores, or one lies outside of [0, 1].
    """
    if wrong := [score for scores in scores_by_seed for score in scores if not -1e-9 <= score <= 1 + 1e-9]:
        raise ValueError(f"scores: must lie in [0, 1], and {wrong[0]} does not; `paired_ci` takes any numbers")
    mean, by_seed, by_task = _pool(scores_by_seed, tasks)
    below, above = _task_margins(by_task)
    if len(by_seed) > 1:
        margin = t_margin(by_seed)
        below, above = max(below, margin), max(above, margin)
    return Estimate(mean, max(0.0, mean - below), min(1.0, mean + above), sum(map(len, scores_by_seed)))


def paired_ci(differences_by_seed: Sequence[Sequence[float]], *, tasks: Tasks | None = None) -> Estimate:
    """Return the mean of differences with its 95% interval, which has no width where all of them are equal.

    The interval is a seeded bootstrap over tasks and, with several seeds, never narrower than Student's t over the
    seeds' means. `tasks` are those of `mean_ci`.

    Raises ValueError when a seed has no differences.
    """
    mean, by_seed, by_task = _pool(differences_by_seed, tasks)
    low, high = bootstrap(by_task)
    margin = t_margin(by_seed) if len(by_seed) > 1 else 0.0
    return Estimate(mean, min(low, mean - margin), max(high, mean + margin), sum(map(len, differences_by_seed)))


def difference_ci(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], *, tasks: Tasks | None = None
) -> Estimate:
    """Return the mean of `first` - `second`, paired by seed and task, with its 95% interval. Scores lie in [0, 1].

    Where every pair differs alike, pairing says nothing about further tasks; the interval is then that of two
    independent means.
    """
    pairs = [[a - b for a, b in zip(*scores, strict=True)] for scores in zip(first, second, strict=True)]
    found = paired_ci(pairs, tasks=tasks)
    if found.high - found.low < 1e-9:
        means = (mean_ci(scores, tasks=tasks) for scores in (first, second))
        low, high = independent_difference(*means)
        return Estimate(found.mean, low, high, found.n)
    return Estimate(found.mean, max(-1.0, found.low), min(1.0, found.high), found.n)


def independent_difference(first: Estimate, second: Estimate) -> tuple[float, float]:
    """Return the 95% interval of `first` - `second` from the intervals of two independent means (Newcombe 1998)."""
    difference = first.mean - second.mean
    below = math.hypot(first.mean - first.low, second.high - second.mean)
    above = math.hypot(first.high - first.mean, second.mean - second.low)
    return difference - below, difference + above


def t_margin(values: Sequence[float]) -> float:
    """Return half the width of Student's t 95% interval for the mean of two or more values."""
    t95 = T95[min(len(values) - 1, len(T95)) - 1]
    return t95 * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def wilson(successes: float, n: int) -> tuple[float, float]:
    """Return Wilson's 95% score interval of a proportion."""
    share, z2 = successes / n, Z95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    margin = Z95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - margin), min(1.0, centre + margin)


def bootstrap(scores: Sequence[float]) -> tuple[float, float]:
    """Return the percentile bootstrap 95% interval of the mean; the same scores give the same interval."""
    values = np.asarray(scores, dtype=float)
    generator = np.random.default_rng(0)
    means = values[generator.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Retention:
    """The fit accuracy = `start` * `per_turn` ** turns over `points` lengths; it leaves out `zeros` that scored 0.

    `low` and `high` bound `per_turn` with 95%. All are None when fewer than two different numbers of turns scored
    above 0.
    """

    per_turn: float | None
    start: float | None
    points: int
    zeros: int
    low: float | None = None
    high: float | None = None


def fit_retention(turns: Sequence[float], accuracies: Sequence[float], counts: Sequence[int]) -> Retention:
    """Fit accuracy = a * r^K by weighted least squares on log accuracy, with one point per length.

    A point has the mean turns K, the mean score p and the number n of its tasks. Its weight is the inverse variance of
    log p, n p / (1 - p), with p moved a little towards 1/2, because a perfect score would have infinite weight. A
    length that scored 0 has no logarithm and is left out: where `zeros` > 0, the true r is lower. Where guessing alone
    scores above 0, the fitted r is too high.

    The interval of r is that of the fits to seeded draws of every p from its Beta(n p + 1/2, n (1 - p) + 1/2). It
    covers the spread between tasks, not that between seeds.
    """
    points = [point for point in zip(turns, accuracies, counts, strict=True) if point[1] > 0]
    zeros = len(turns) - len(points)
    if len({k for k, _, _ in points}) < 2:
        return Retention(None, None, len(points), zeros)
    k, p, n = np.array(points, dtype=float).T
    per_turn, start = _fit_log_scores(k, p, n)
    drawn = np.random.default_rng(0).beta(n * p + 0.5, n * (1 - p) + 0.5, size=(RESAMPLES, len(points)))
    low, high = np.quantile(_fit_log_scores(k, drawn, n)[0], (0.025, 0.975))
    return Retention(float(per_turn), float(start), len(points), zeros, float(low), float(high))


def _fit_log_scores(k: Any, p: Any, n: Any) -> tuple[Any, Any]:
    """Return r and a of each row of scores `p`, whose last axis is that of the lengths."""
    shrunk = (p * n + 0.5) / (n + 1)
    weight = n * shrunk / (1 - shrunk)
    weight = weight / weight.sum(axis=-1, keepdims=True)
    k_mean, log_mean = ((weight * values).sum(axis=-1, keepdims=True) for values in (k, np.log(p)))
    slope = (weight * (k - k_mean) * (np.log(p) - log_mean)).sum(axis=-1) / (weight * (k - k_mean) ** 2).sum(axis=-1)
    return np.exp(slope), np.exp(log_mean[..., 0] - slope * k_mean[..., 0])


def _pool(values_by_seed: Sequence[Sequence[float]], tasks: Tasks | None) -> tuple[float, list[float], list[float]]:
    """Return the mean over seeds, the mean of each seed, and one value for each task."""
    if not values_by_seed or not all(len(values) for values in values_by_seed):
        raise ValueError("a mean needs at least one score for each seed")
    means = [math.fsum(values) / len(values) for values in values_by_seed]
    values = [value for of_seed in values_by_seed for value in of_seed]
    names = range(len(values)) if tasks is None else [name for of_seed in tasks for name in of_seed]
    by_task: dict[Hashable, list[float]] = {}
    for name, value in zip(names, values, strict=True):
        by_task.setdefault(name, []).append(value)
    mean, by_task_means = math.fsum(means) / len(means), [math.fsum(of) / len(of) for of in by_task.values()]
    if any(len({*Counter(of_seed).values()}) > 1 for of_seed in tasks or ()):
        # A question with more values weighs more in the mean, which is a ratio of sums; this is its linear part.
        shares = [len(of_task) * len(by_task) / len(values) for of_task in by_task.values()]
        by_task_means = [mean + (own - mean) * share for own, share in zip(by_task_means, shares, strict=True)]
    return mean, means, by_task_means


def _task_margins(scores: Sequence[float]) -> tuple[float, float]:
    """Return how far the interval over tasks reaches below and above the mean."""
    mean = math.fsum(scores) / len(scores)
    binary = all(score in (0, 1) for score in scores)
    low, high = wilson(math.fsum(scores), len(scores)) if binary or len(set(scores)) == 1 else bootstrap(scores)
    return mean - low, high - mean
