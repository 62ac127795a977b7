"""Statistics of repeated samples of each task: pass@j, pass^k, paired differences, means over groups of tasks.

Intervals are 95% bootstraps over tasks (core/report/stats.py). They say nothing about another set of samples.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from core.report.stats import Estimate, bootstrap

Key = TypeVar("Key", bound=Hashable)
Sample = TypeVar("Sample")


def group_repeats(samples: Iterable[tuple[Key, int, Sample]]) -> tuple[dict[Key, list[Sample]], int]:
    """Group (task, repeat, sample) by task, in order of the repeats; also return the number of repeats.

    Raises:
        ValueError: the tasks do not all have the same repeats, or one is there twice.
    """
    by_task: dict[Key, dict[int, Sample]] = {}
    for task, repeat, sample in samples:
        of_task = by_task.setdefault(task, {})
        if repeat in of_task:
            raise ValueError(f"sample {repeat} of {task} is there twice")
        of_task[repeat] = sample
    repeats = {tuple(sorted(of_task)) for of_task in by_task.values()}
    if len(repeats) != 1:
        raise ValueError("every task needs the same samples")
    (common,) = repeats
    return {task: [of_task[repeat] for repeat in common] for task, of_task in by_task.items()}, len(common)


def pass_at(n: int, c: int, j: int) -> float:
    """Return the chance that of `j` samples drawn from `n`, `c` of them right, at least one is right."""
    _check_draw("@", n, c, j)
    return 1.0 - math.comb(n - c, j) / math.comb(n, j)


def pass_hat(n: int, c: int, k: int) -> float:
    """Return the chance that all of `k` samples drawn from `n`, `c` of them right, are right."""
    _check_draw("^", n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def _check_draw(sign: str, n: int, c: int, j: int) -> None:
    if not 0 <= c <= n or not 1 <= j <= n:
        raise ValueError(f"pass{sign}{j} of {n} samples with {c} right")


def paired_difference(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Estimate | None:
    """Return the mean difference over the tasks that both have; None without any.

    An interval without width says only that all of them differ alike.
    """
    paired = [ours[task] - theirs[task] for task in ours if task in theirs]
    return Estimate(math.fsum(paired) / len(paired), *bootstrap(paired), len(paired)) if paired else None


def group_means(scores: Mapping[str, Sequence[float]], resamples: int = 2000, seed: int = 0) -> dict[str, Estimate]:
    """Return the mean of each group of tasks, `micro` over all tasks and `macro` over the groups.

    Their intervals resample the tasks within each group.
    """
    generator = np.random.default_rng(seed)
    means, drawn = {}, {}
    for group, values in scores.items():
        array = np.asarray(values, dtype=float)
        means[group] = float(array.mean())
        drawn[group] = array[generator.integers(len(array), size=(resamples, len(array)))].mean(axis=1)
    sizes = {group: len(values) for group, values in scores.items()}
    total = sum(sizes.values())
    weights = {
        **{group: {group: 1.0} for group in scores},
        "micro": {group: sizes[group] / total for group in scores},
        "macro": {group: 1 / len(scores) for group in scores},
    }
    estimates = {}
    for name, weight in weights.items():
        low, high = np.quantile(sum(w * drawn[group] for group, w in weight.items()), (0.025, 0.975))
        mean = sum(w * means[group] for group, w in weight.items())
        estimates[name] = Estimate(mean, float(low), float(high), sum(sizes[group] for group in weight))
    return estimates
