"""Means with 95% confidence intervals over seeds and tasks, and the accuracy kept per turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959964
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""97.5% quantiles of Student's t for 1 to 15 degrees of freedom; the last serves for more, a little too wide."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of scores in [0, 1], its 95% interval, and the number of scores (tasks, over all seeds)."""

    mean: float
    low: float
    high: float
    n: int


def mean_ci(scores_by_seed: Sequence[Sequence[float]], *, same_tasks: bool = False) -> Estimate:
    """Mean over seeds and tasks with its 95% interval. Scores lie in [0, 1]; each seed counts the same.

    One seed: the interval over tasks, Wilson's when every score is 0 or 1, else a seeded percentile bootstrap.
    It says nothing about training another seed.

    Several seeds: Student's t over the seed means, which holds the spread between seeds and, as each seed has its own
    tasks, that between tasks. With two to five seeds this is preferred to a hierarchical bootstrap, which draws the few
    seeds with replacement and is too narrow by sqrt((S - 1) / S) before any correction for the tails. Seed means that
    agree by luck, or because all are 1.0, would give an interval of no width; so it is never narrower, on either
    side, than the interval over all tasks pooled. `same_tasks`: all seeds have one list of tasks in the same order; a
    task then counts once there, with its mean over seeds.

    Raises ValueError without scores.
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
    """Half the width of Student's t 95% interval of the mean of two or more values."""
    return _t95(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def wilson(successes: float, n: int) -> tuple[float, float]:
    """Wilson's 95% score interval of a proportion."""
    share, z2 = successes / n, Z95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    margin = Z95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - margin), min(1.0, centre + margin)


def bootstrap(scores: Sequence[float], resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap 95% interval of the mean, the same at every call with the same `seed`."""
    values = np.asarray(scores, dtype=float)
    generator = np.random.default_rng(seed)
    means = values[generator.integers(len(values), size=(resamples, len(values)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Retention:
    """accuracy = `start` * `per_turn` ** turns, fitted over `points` lengths; `zeros` more scored 0 and were left out.

    `per_turn` is None when fewer than two different numbers of turns scored above 0.
    """

    per_turn: float | None
    start: float | None
    points: int
    zeros: int


def retention(turns: Sequence[float], accuracies: Sequence[float], counts: Sequence[int]) -> Retention:
    """Fit accuracy = a * r^K by weighted least squares on log accuracy; one point per length.

    `turns`: mean turns K; `accuracies`: mean score; `counts`: scores behind it. The weight of a point is the inverse
    variance of its log, n p / (1 - p), with p drawn a little towards 1/2 so that a perfect score weighs finitely.
    Lengths that scored 0 have no logarithm: they are left out and counted, so where `zeros` > 0 the true r is lower.
    A floor of chance in the score flattens the fit and r is then too high.
    """
    kept = [(k, p, n) for k, p, n in zip(turns, accuracies, counts, strict=True) if p > 0]
    zeros = len(turns) - len(kept)
    if len({k for k, _, _ in kept}) < 2:
        return Retention(None, None, len(kept), zeros)
    k = np.array([point[0] for point in kept], dtype=float)
    p = np.array([point[1] for point in kept], dtype=float)
    n = np.array([point[2] for point in kept], dtype=float)
    shrunk = (p * n + 0.5) / (n + 1)
    weight = n * shrunk / (1 - shrunk)
    k_mean, log_mean = np.average(k, weights=weight), np.average(np.log(p), weights=weight)
    slope = np.sum(weight * (k - k_mean) * (np.log(p) - log_mean)) / np.sum(weight * (k - k_mean) ** 2)
    return Retention(float(np.exp(slope)), float(np.exp(log_mean - slope * k_mean)), len(kept), zeros)


def _task_margins(scores: Sequence[float]) -> tuple[float, float]:
    """How far the interval over tasks reaches below and above the mean."""
    mean = math.fsum(scores) / len(scores)
    binary = all(score in (0, 1) for score in scores)
    low, high = wilson(math.fsum(scores), len(scores)) if binary or len(set(scores)) == 1 else bootstrap(scores)
    return mean - low, high - mean


def _t95(degrees: int) -> float:
    return T95[min(degrees, len(T95)) - 1]
