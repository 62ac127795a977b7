"""The results of an evaluation: EvalResults with all numbers, the tables that the command prints, and tau2's own files.

`tau2 view` and `tau2 evaluate-trajs` read official/VARIANT_DOMAIN.json. A conversation that failed is in it as tau2's
`infrastructure_error`. The statistics are pass^k (all of k trials solve the task; tau-bench, arXiv 2406.12045) and its
intervals over tasks:

pass^k of a task with c of n trials solved is C(c, k) / C(n, k). A trial without a grade (an infrastructure error) is
counted, and counts as not solved; tau2's own tool leaves it out. `micro` averages over all tasks, `macro` over domains.
Intervals: 95% over tasks, Wilson's where all scores are 0 or 1. They say nothing about another sample of trials.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from agentic.toolorchestra.tau2.client import Workers
from benchmarks.harness.plan import EvalCell
from benchmarks.harness.run import build_result
from benchmarks.harness.samples import Sample, Samples, flat, read_samples
from benchmarks.harness.statistics import group_means, pass_hat
from benchmarks.tau2.protocols import ALL
from benchmarks.tau2.tasks import DOMAINS
from core.report.stats import Estimate
from core.report.table import format_score, markdown
from core.runs.evaluation import EvalResult
from core.runs.run_folder import RunFolder
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


def tau2_statistics(samples: Mapping[str, Samples]) -> Tau2Statistics:
    """Compute the statistics of one variant from the samples of each domain, as many of each task."""
    solved = {domain: [sum(map(is_solved, of_task)) for of_task in by_task] for domain, by_task in samples.items()}
    trials = [sample for by_task in samples.values() for sample in flat(by_task)]
    n = len(trials) // sum(map(len, samples.values()))
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


def tau2_result(cell: EvalCell, samples: Samples) -> EvalResult:
    """Build the result of one variant on one domain: scores are a task's means over its trials.

    Measures are those over its trials that did not fail: what a failed one has cost is not known.
    """
    graded = [[sample for sample in of_task if not sample.failed] for of_task in samples]

    def means(value: Callable[[Sample], float]) -> list[float | None]:
        return [fmean(map(value, of_task)) if of_task else None for of_task in graded]

    stats = tau2_statistics({cell.data.removeprefix("tau2-"): samples})
    return build_result(
        cell,
        samples,
        scores={"official": [fmean(map(is_solved, of_task)) for of_task in samples]},
        measures={
            "cost": means(read_cost),
            "turns": means(lambda sample: sample.turns),
            "policy_tokens": means(lambda sample: sample.policy_tokens),
        },
        notes=summarize_variant(stats),
    )


def read_statistics(folder: RunFolder) -> dict[str, Tau2Statistics]:
    """Return variant -> statistics over all its complete domains in the folder, of this call and earlier ones.

    Where one domain has fewer trials than another, so many are taken of each.
    """
    by_variant: dict[str, list[EvalResult]] = {}
    played = [result for result in folder.evaluations() if result.data != ALL]
    for result in sorted(played, key=lambda result: DOMAINS.index(result.data.removeprefix("tau2-"))):
        by_variant.setdefault(result.variant, []).append(result)
    found = {}
    for variant, results in by_variant.items():
        trials = min(result.notes["repeats"] for result in results)
        found[variant] = tau2_statistics(
            {result.data.removeprefix("tau2-"): read_samples(folder, result, trials) for result in results}
        )
    return found


def summarize_variant(stats: Tau2Statistics) -> dict[str, Any]:
    """Return all numbers of one variant, as JSON."""
    passes = {
        f"pass^{k}": {name: estimate.to_json() for name, estimate in by_group.items()}
        for k, by_group in stats.pass_hat.items()
    }
    return {**{name: value for name, value in asdict(stats).items() if name != "pass_hat"}, **passes}


def describe_results(variants: Mapping[str, Tau2Statistics], version: str, notes: Sequence[str]) -> str:
    """Return the tables of all variants. `notes` say how the installation differs from the pinned one."""
    parts = ["# tau2-bench " + version]
    for variant, stats in variants.items():
        header = ["", *(f"pass^{k}" for k in stats.pass_hat), "tasks"]
        sizes = {**stats.tasks, "micro": sum(stats.tasks.values()), "macro": sum(stats.tasks.values())}
        rows = [
            [name, *(format_score(stats.pass_hat[k][name].to_json()) for k in stats.pass_hat), str(size)]
            for name, size in sizes.items()
        ]
        calls = ", ".join(f"{name} {n:.2f}" for name, n in stats.calls.items()) or "none"
        parts += [
            f"## {variant}: % with 95% intervals over tasks, {stats.trials} trial(s)",
            markdown(header, *rows),
            f"Infrastructure errors: {list_counts(stats.errors)}. Ended by: {list_counts(stats.terminations)}. "
            f"Graded without a judge of assertions: {stats.not_judged}. Per conversation ${stats.cost:.4f}; experts "
            f"called: {calls}; conversations by number of such calls: {list_counts(stats.histogram)}.",
        ]
    if notes:
        parts += ["Departures:", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts)


def list_counts(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


async def write_official(
    folder: RunFolder, workers: Workers, result: EvalResult, limits: Mapping[str, int], who: Mapping[str, Any]
) -> Path:
    """Write tau2's own results file of one variant on one domain. `who` has `agent` and `user`, as in tau2's info."""
    samples, domain = flat(read_samples(folder, result)), result.data.removeprefix("tau2-")
    path = folder.path / "official" / f"{result.variant}_{domain}.json"
    path.parent.mkdir(exist_ok=True)
    info = {
        **limits,
        **who,
        "domain": domain.removesuffix("-solo"),
        "num_trials": result.notes["repeats"],
        "seed": None,
        "git_commit": (await workers.pick().call("about"))["commit"] or "unknown",
    }
    tasks = list(dict.fromkeys(sample.graded["tau2_id"] for sample in samples))
    simulations = list(map(_official_simulation, samples))
    await workers.pick().call("save", path=str(path), info=info, tasks=tasks, simulations=simulations)
    return path


def _official_simulation(sample: Sample) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    failed = {
        "id": f"failed-{sample.repeat}-{sample.graded['tau2_id']}",
        "task_id": sample.graded["tau2_id"],
        "start_time": now,
        "end_time": now,
        "duration": 0.0,
        "termination_reason": "infrastructure_error",
        "messages": [],
        "info": {"error": sample.failure},
    }
    simulation = dict(sample.graded["simulation"] or failed)
    return {**simulation, "trial": sample.repeat, "agent_cost": sample.metrics.get("cost")}
