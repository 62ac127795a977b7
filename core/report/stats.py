"""This module computes means with 95% intervals over seeds and tasks, and the accuracy that is kept per turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959964
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Holds the 97.5% quantiles of Student's t for 1 to 15 degrees of freedom; the last serves for more, a bit too wide."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of scores in [0, 1] with its 95% interval; `n` counts the scores, which are tasks over all seeds."""

    mean: float
    low: float
    high: float
    n: int


def mean_ci(scores_by_seed: Sequence[Sequence[float]], *, same_tasks: bool = False) -> Estimate:
    """Return the mean over seeds and tasks with its 95% interval. Scores lie in [0, 1]; each seed has the same weight.

    With one seed, the interval covers the spread between tasks: Wilson's when every score is 0 or 1, otherwise a seeded
    percentile bootstrap. It says nothing about training another seed.

    With several seeds, the interval is Student's t over the seed means. It covers the spread between seeds and, because
    each seed has its own tasks, the spread between tasks. A hierarchical bootstrap draws the few seeds with replacement
    and would be too narrow by sqrt((S - 1) / S) for S seeds, even before any correction for the tails. Seed means that
    are equal would give an interval without width, so neither side is narrower than that of the interval over all tasks
    together. `same_tasks` says that all seeds have the same tasks in the same order; each task then counts once there,
    with its mean over seeds.

    Raises ValueError when a seed has no scores.
    """
    if not scores_by_seed or not all(len(scores) for scores in scores_by_seed):
        raise ValueError("a mean needs at least one score for each seed")
    means = [math.fsum(scores) / len(scores) for scores in scores_by_seed]
    mean = math.fsum(means) / len(means)
    pooled = [score for scores in scores_by_seed for score in scores]
    by_task = (
        [math.fsum(column) / len(column) for column in zip(*scores_by_seed, strict=True)] if same_tasks else pooled
    )
    below, above = _task_margins(by_task)
    if len(means) > 1:
        margin = t_margin(means)
        below, above = max(below, margin), max(above, margin)
    return Estimate(mean, max(0.0, mean - below), min(1.0, mean + above), len(pooled))


def t_margin(values: Sequence[float]) -> float:
    """Return half the width of Student's t 95% interval for the mean of two or more values."""
    return _t95(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def wilson(successes: float, n: int) -> tuple[float, float]:
    """Return Wilson's 95% score interval of a proportion."""
    share, z2 = successes / n, Z95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    margin = Z95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - margin), min(1.0, centre + margin)


def bootstrap(scores: Sequence[float], resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """Return the percentile bootstrap 95% interval of the mean; the same `seed` gives the same interval."""
    values = np.asarray(scores, dtype=float)
    generator = np.random.default_rng(seed)
    means = values[generator.integers(len(values), size=(resamples, len(values)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Retention:
    """The fit accuracy = `start` * `per_turn` ** turns over `points` lengths; it leaves out `zeros` that scored 0.

    `per_turn` is None when fewer than two different numbers of turns scored above 0.
    """

    per_turn: float | None
    start: float | None
    points: int
    zeros: int


def fit_retention(turns: Sequence[float], accuracies: Sequence[float], counts: Sequence[int]) -> Retention:
    """Fit accuracy = a * r^K by weighted least squares on log accuracy, with one point per length.

    A point has the mean turns K, the mean score p and the number n of its scores. Its weight is the inverse variance of
    log p, n p / (1 - p), with p moved a little towards 1/2, because a perfect score would have infinite weight. A
    length that scored 0 has no logarithm and is left out: where `zeros` > 0, the true r is lower. Where guessing alone
    scores above 0, the fitted r is too high.
    """
    points = [point for point in zip(turns, accuracies, counts, strict=True) if point[1] > 0]
    zeros = len(turns) - len(points)
    if len({k for k, _, _ in points}) < 2:
        return Retention(None, None, len(points), zeros)
    k, p, n = np.array(points, dtype=float).T
    shrunk = (p * n + 0.5) / (n + 1)
    weight = n * shrunk / (1 - shrunk)
    k_mean, log_mean = np.average(k, weights=weight), np.average(np.log(p), weights=weight)
    slope = np.sum(weight * (k - k_mean) * (np.log(p) - log_mean)) / np.sum(weight * (k - k_mean) ** 2)
    return Retention(float(np.exp(slope)), float(np.exp(log_mean - slope * k_mean)), len(points), zeros)


def _task_margins(scores: Sequence[float]) -> tuple[float, float]:
    """Return how far the interval over tasks reaches below and above the mean."""
    mean = math.fsum(scores) / len(scores)
    binary = all(score in (0, 1) for score in scores)
    low, high = wilson(math.fsum(scores), len(scores)) if binary or len(set(scores)) == 1 else bootstrap(scores)
    return mean - low, high - mean


def _t95(degrees: int) -> float:
    return T95[min(degrees, len(T95)) - 1]
