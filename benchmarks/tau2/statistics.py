"""Statistics of the trials: pass^k (all of k trials solve the task; tau-bench, arXiv 2406.12045), intervals over tasks.

pass^k of a task with c of n trials solved is C(c, k) / C(n, k). A trial without a grade (an infrastructure error) is
counted, and counts as not solved; tau2's own tool leaves it out. `micro` averages over all tasks, `macro` over domains.
Intervals: 95% over tasks, Wilson's where all scores are 0 or 1. They say nothing about another sample of trials.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from benchmarks.harness.samples import Sample
from benchmarks.harness.statistics import group_means, group_repeats, pass_hat
from core.report.stats import Estimate
from core.types import CALLS


@dataclass(frozen=True, slots=True)
class Tau2Statistics:
    """Holds the numbers of one variant. `pass_hat[k]` has the domains, `micro` and `macro`. Costs in dollars and calls
    are per conversation that has a grade. `histogram` counts conversations by how often they called experts."""

    trials: int
    tasks: Mapping[str, int]
    pass_hat: Mapping[int, Mapping[str, Estimate]]
    errors: Mapping[str, int]
    terminations: Mapping[str, int]
    not_judged: int
    cost: float
    calls: Mapping[str, float]
    histogram: Mapping[int, int]


def tau2_statistics(samples: Mapping[str, Sequence[Sample]]) -> Tau2Statistics:
    """Compute the statistics of one variant from the samples of each domain.

    Raises:
        ValueError: the tasks do not all have the same trials, each once.
    """
    every = [(domain, sample) for domain, of_domain in samples.items() for sample in of_domain]
    by_task, n = group_repeats(((domain, each.task_id), each.repeat, is_solved(each)) for domain, each in every)
    solved: dict[str, list[int]] = {}
    for (domain, _), verdicts in by_task.items():
        solved.setdefault(domain, []).append(sum(verdicts))
    trials = [sample for _, sample in every]
    graded = [sample for sample in trials if sample.failure is None]
    calls = [count_calls(sample) for sample in graded]
    count = max(1, len(graded))
    return Tau2Statistics(
        trials=n,
        tasks={domain: len(counts) for domain, counts in solved.items()},
        pass_hat={
            k: group_means({domain: [pass_hat(n, c, k) for c in counts] for domain, counts in solved.items()})
            for k in range(1, n + 1)
        },
        errors=dict(Counter(sample.failure for sample in trials if sample.failure is not None)),
        terminations=dict(
            Counter(_simulation(sample).get("termination_reason", "infrastructure_error") for sample in trials)
        ),
        not_judged=sum((_simulation(each).get("info") or {}).get("assertions_not_judged", False) for each in graded),
        cost=sum(read_cost(sample) for sample in graded) / count,
        calls={name: sum(each.get(name, 0) for each in calls) / count for name in dict.fromkeys(chain(*calls))},
        histogram=dict(sorted(Counter(int(sum(each.values())) for each in calls).items())),
    )


def is_solved(sample: Sample) -> bool:
    return not sample.failed and abs(sample.graded["score"] - 1.0) < 1e-6


def read_cost(sample: Sample) -> float:
    return float(sample.metrics.get("cost", 0.0))


def count_calls(sample: Sample) -> dict[str, float]:
    """Return how often each expert was called."""
    return {name.removeprefix(CALLS): n for name, n in sample.metrics.items() if name.startswith(CALLS)}


def _simulation(sample: Sample) -> Mapping[str, Any]:
    return sample.graded["simulation"] or {}
