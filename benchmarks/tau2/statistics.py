"""What the trials say: pass^k (all of k trials solve the task; tau-bench, arXiv 2406.12045) with intervals over tasks.

pass^k of a task with c of n trials solved is C(c, k) / C(n, k). A trial without a grade (an infrastructure error) is
counted, and counts as not solved; tau2's own tool leaves it out. `micro` averages over all tasks, `macro` over domains.
Intervals: bootstrap of the tasks within their domains, 95%. They say nothing about another sample of trials, and one
without width says only that all tasks scored alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from core.report.stats import Estimate


@dataclass(frozen=True, slots=True)
class Trial:
    """One conversation. `calls` counts the experts called; `failure` names why there is no grade."""

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
class Statistics:
    """Of one variant. `pass_hat[k]` has the domains, `micro` and `macro`; costs in dollars and calls are per conversation
    that has a grade. `histogram` counts conversations by how often they called experts."""

    trials: int
    tasks: Mapping[str, int]
    pass_hat: Mapping[int, Mapping[str, Estimate]]
    errors: Mapping[str, int]
    terminations: Mapping[str, int]
    not_judged: int
    cost: float
    calls: Mapping[str, float]
    histogram: Mapping[int, int]


def pass_hat(n: int, c: int, k: int) -> float:
    """The chance that all of `k` trials drawn from `n`, `c` of them solved, are solved."""
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass^{k} of {n} trials with {c} solved")
    return math.comb(c, k) / math.comb(n, k)


def statistics(trials: Sequence[Trial]) -> Statistics:
    """Raises ValueError unless every task has the same trials, each once."""
    of_task: dict[tuple[str, str], dict[int, bool]] = {}
    for trial in trials:
        held = of_task.setdefault((trial.domain, trial.task_id), {})
        if trial.trial in held:
            raise ValueError(f"trial {trial.trial} of {trial.task_id} is there twice")
        held[trial.trial] = trial.solved
    numbers = {tuple(sorted(held)) for held in of_task.values()}
    if len(numbers) != 1:
        raise ValueError("every task needs the same trials")
    n = len(numbers.pop())
    domains = list(dict.fromkeys(domain for domain, _ in of_task))
    solved = {d: [sum(held.values()) for (domain, _), held in of_task.items() if domain == d] for d in domains}
    graded = [trial for trial in trials if trial.failure is None]
    count = max(1, len(graded))
    names = dict.fromkeys(name for trial in graded for name in trial.calls)
    return Statistics(
        trials=n,
        tasks={domain: len(counts) for domain, counts in solved.items()},
        pass_hat={
            k: averages({domain: [pass_hat(n, c, k) for c in counts] for domain, counts in solved.items()})
            for k in range(1, n + 1)
        },
        errors=dict(Counter(trial.failure for trial in trials if trial.failure is not None)),
        terminations=dict(Counter(trial.termination for trial in trials)),
        not_judged=sum(not trial.judged for trial in graded),
        cost=sum(trial.cost for trial in graded) / count,
        calls={name: sum(trial.calls.get(name, 0) for trial in graded) / count for name in names},
        histogram=dict(sorted(Counter(int(sum(trial.calls.values())) for trial in graded).items())),
    )


def averages(scores: Mapping[str, Sequence[float]], resamples: int = 2000, seed: int = 0) -> dict[str, Estimate]:
    """Domain -> scores of its tasks, into the means of the domains, `micro` and `macro`, with their intervals."""
    generator = np.random.default_rng(seed)
    means, drawn = {}, {}
    for domain, values in scores.items():
        array = np.asarray(values, dtype=float)
        means[domain] = float(array.mean())
        drawn[domain] = array[generator.integers(len(array), size=(resamples, len(array)))].mean(axis=1)
    sizes = {domain: len(values) for domain, values in scores.items()}
    total = sum(sizes.values())
    weights = {
        **{domain: {domain: 1.0} for domain in scores},
        "micro": {domain: sizes[domain] / total for domain in scores},
        "macro": {domain: 1 / len(scores) for domain in scores},
    }
    estimates = {}
    for name, weight in weights.items():
        low, high = np.quantile(sum(w * drawn[domain] for domain, w in weight.items()), (0.025, 0.975))
        mean = sum(w * means[domain] for domain, w in weight.items())
        estimates[name] = Estimate(mean, float(low), float(high), sum(sizes[domain] for domain in weight))
    return estimates
