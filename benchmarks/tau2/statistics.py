"""Statistics of the trials: pass^k (all of k trials solve the task; tau-bench, arXiv 2406.12045), intervals over tasks.

pass^k of a task with c of n trials solved is C(c, k) / C(n, k). A trial without a grade (an infrastructure error) is
counted, and counts as not solved; tau2's own tool leaves it out. `micro` averages over all tasks, `macro` over domains.
Intervals: 95% over tasks, Wilson's where all scores are 0 or 1. They say nothing about another sample of trials.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.harness.samples import Sample
from benchmarks.harness.statistics import group_means, group_repeats, pass_hat
from core.report.stats import Estimate
from core.types import CALLS


@dataclass(frozen=True, slots=True)
class Trial:
    """Describes one conversation. `calls` counts the experts called; `failure` names why there is no grade."""

    domain: str
    task_id: str
    trial: int
    solved: bool
    failure: str | None = None
    termination: str = "infrastructure_error"
    judged: bool = True
    cost: float = 0.0
    calls: Mapping[str, float] = field(default_factory=dict)


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


def tau2_statistics(trials: Sequence[Trial]) -> Tau2Statistics:
    """Compute the statistics of one variant.

    Raises:
        ValueError: the tasks do not all have the same trials, each once.
    """
    by_task, n = group_repeats(((trial.domain, trial.task_id), trial.trial, trial.solved) for trial in trials)
    solved: dict[str, list[int]] = {}
    for (domain, _), verdicts in by_task.items():
        solved.setdefault(domain, []).append(sum(verdicts))
    graded = [trial for trial in trials if trial.failure is None]
    count = max(1, len(graded))
    names = dict.fromkeys(name for trial in graded for name in trial.calls)
    return Tau2Statistics(
        trials=n,
        tasks={domain: len(counts) for domain, counts in solved.items()},
        pass_hat={
            k: group_means({domain: [pass_hat(n, c, k) for c in counts] for domain, counts in solved.items()})
            for k in range(1, n + 1)
        },
        errors=dict(Counter(trial.failure for trial in trials if trial.failure is not None)),
        terminations=dict(Counter(trial.termination for trial in trials)),
        not_judged=sum(not trial.judged for trial in graded),
        cost=sum(trial.cost for trial in graded) / count,
        calls={name: sum(trial.calls.get(name, 0) for trial in graded) / count for name in names},
        histogram=dict(sorted(Counter(int(sum(trial.calls.values())) for trial in graded).items())),
    )


def read_trial(sample: Sample, data: str) -> Trial:
    """Return what the statistics need of a sample of a data set."""
    metrics, simulation = sample.metrics, sample.graded["simulation"] or {}
    return Trial(
        domain=data.removeprefix("tau2-"),
        task_id=sample.task_id,
        trial=sample.repeat,
        solved=not sample.failed and abs(sample.graded["score"] - 1.0) < 1e-6,
        failure=sample.failure,
        termination=simulation.get("termination_reason", "infrastructure_error"),
        judged=not (simulation.get("info") or {}).get("assertions_not_judged", False),
        cost=metrics.get("cost", 0.0),
        calls={name.removeprefix(CALLS): n for name, n in metrics.items() if name.startswith(CALLS)},
    )
