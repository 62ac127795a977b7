"""The results of all variants: EvalResults with all numbers, and the tables that the command prints.

An EvalResult has a score for each problem: the mean over its k samples. Its `length` is the token budget of one call.
The statistics of the k samples of each problem:

- avg@k: the share of all samples that are right; the mean over problems of c/k.
- pass@j: unbiased over the k samples, 1 - C(k-c, j) / C(k, j) (Chen et al. 2021, arXiv 2107.03374); pass@1 is avg@k.
- maj@k: the most frequent normalised answer; samples without an answer do not vote. Of answers that tie, one is drawn
  at random: the score is the expected value, the share of the tied answers that is right. No vote at all scores 0.

Two intervals answer two questions. Over problems (bootstrap of the problems' means): would other problems of the kind
give another score? Over repeats (Student's t of the k repeats' means; Wilson's where they are all equal, so that the
interval keeps a width): would another k samples of these problems?
Differences between variants are paired by problem. A failed sample is a wrong one; rates are shares of samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

from benchmarks.harness.plan import EvalCell
from benchmarks.harness.run import build_result
from benchmarks.harness.samples import Sample, Samples, flat
from benchmarks.harness.statistics import paired_difference, pass_at
from core.report.stats import Estimate, mean_ci, t_margin, wilson
from core.report.table import format_score, markdown
from core.runs.evaluation import EvalResult


@dataclass(frozen=True, slots=True)
class AimeStatistics:
    """Holds the numbers of one variant. `repeats` is the interval of avg@k over repeats, None for k = 1.
    `parse_errors` and `tool_errors` are shares of samples with at least one."""

    k: int
    avg: Sequence[float]
    pass_at: Mapping[int, Sequence[float]]
    maj: Sequence[float]
    repeats: tuple[float, float] | None
    truncated: float
    no_answer: float
    parse_errors: float
    tool_errors: float
    failures: Mapping[str, int]
    mean_turns: float
    mean_tokens: float

    def estimates(self) -> dict[str, Estimate]:
        """Return the mean over problems of each score, with its interval over problems."""
        return {name: mean_ci([values]) for name, values in self.scores().items()}

    def scores(self) -> dict[str, Sequence[float]]:
        """Return each score as one value for each problem."""
        passes = {f"pass@{j}": values for j, values in self.pass_at.items()}
        return {f"avg@{self.k}": self.avg, **passes, f"maj@{self.k}": self.maj}


def aime_statistics(by_task: Samples) -> AimeStatistics:
    """Compute the statistics of one variant. A sample's `graded` has its normalised `answer`, None without one."""
    samples = flat(by_task)
    k, n = len(by_task[0]), len(samples)
    correct = [sum(map(is_correct, of_task)) for of_task in by_task]
    means = [fmean(map(is_correct, of_repeat)) for of_repeat in zip(*by_task, strict=True)]
    return AimeStatistics(
        k=k,
        avg=[c / k for c in correct],
        pass_at={j: [pass_at(k, c, j) for c in correct] for j in (2**power for power in range(1, k.bit_length()))},
        maj=list(map(score_majority, by_task)),
        repeats=_interval_over_repeats(means, n) if k > 1 else None,
        truncated=sum(sample.status == "truncated" for sample in samples) / n,
        no_answer=sum(sample.graded["answer"] is None for sample in samples) / n,
        parse_errors=_share_with(samples, "parse_errors", "command_errors"),
        tool_errors=_share_with(samples, "tool_errors"),
        failures=dict(Counter(sample.failure for sample in samples if sample.failure is not None)),
        mean_turns=sum(sample.turns for sample in samples) / n,
        mean_tokens=sum(sample.sampled_tokens for sample in samples) / n,
    )


def is_correct(sample: Sample) -> bool:
    return sample.reward == 1.0


def _share_with(samples: Sequence[Sample], *metrics: str) -> float:
    """Return the share of samples in which one of `metrics` is above 0."""
    return sum(any(sample.metrics.get(name, 0) > 0 for name in metrics) for sample in samples) / len(samples)


def _interval_over_repeats(means: Sequence[float], n: int) -> tuple[float, float]:
    mean, margin = math.fsum(means) / len(means), t_margin(means)
    return (max(0.0, mean - margin), min(1.0, mean + margin)) if margin > 0 else wilson(mean * n, n)


def score_majority(samples: Sequence[Sample]) -> float:
    """Return the expected score of the most frequent answer of one problem."""
    votes = Counter(sample.graded["answer"] for sample in samples if sample.graded["answer"] is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    tied = [answer for answer, count in votes.items() if count == most]
    right = {answer: [is_correct(s) for s in samples if s.graded["answer"] == answer] for answer in tied}
    return sum(sum(verdicts) / len(verdicts) for verdicts in right.values()) / len(tied)


NOT_IN_SUMMARY = ("avg", "pass_at", "maj", "repeats")


def aime_result(cell: EvalCell, samples: Samples) -> EvalResult:
    """Build the result of one variant on one data set."""
    stats = aime_statistics(samples)
    passes = {name: list(values) for name, values in stats.scores().items() if not name.startswith("avg")}
    return build_result(cell, samples, scores={"official": list(stats.avg), **passes}, notes=summarize_variant(stats))


def summarize_variant(stats: AimeStatistics) -> dict[str, Any]:
    """Return all numbers of one variant, as JSON."""
    numbers = {name: value for name, value in asdict(stats).items() if name not in NOT_IN_SUMMARY}
    scores = {
        name: {"mean": estimate.mean, "ci95_problems": [estimate.low, estimate.high]}
        for name, estimate in stats.estimates().items()
    }
    return {**numbers, "scores": scores, "ci95_repeats": None if stats.repeats is None else list(stats.repeats)}


def describe_results(results: Sequence[EvalResult]) -> str:
    """Return the tables of each data set, from the numbers that the results hold."""
    by_data: dict[str, list[EvalResult]] = {}
    for result in results:
        by_data.setdefault(result.data, []).append(result)
    return "\n\n".join(part for data, variants in by_data.items() for part in _tables(data, variants))


def _tables(data: str, variants: Sequence[EvalResult]) -> list[str]:
    names = sorted({name for result in variants for name in result.notes["scores"]}, key=_score_order)
    score_rows, rate_rows = list[list[str]](), list[list[str]]()
    for result in variants:
        numbers = result.notes
        scores = [_show_score(numbers["scores"].get(name)) for name in names]
        score_rows.append([result.variant, *scores, _show_interval(numbers["ci95_repeats"])])
        shares = [f"{100 * numbers[name]:.1f}" for name in ("truncated", "no_answer", "parse_errors", "tool_errors")]
        means = [f"{numbers['mean_turns']:.2f}", f"{numbers['mean_tokens']:,.0f}"]
        failures = ", ".join(f"{count} {kind}" for kind, count in numbers["failures"].items()) or "0"
        rate_rows.append([result.variant, str(numbers["k"]), *shares, *means, failures])
    rates = ["variant", "k", "truncated", "no answer", "parse errors", "tool errors", "turns", "tokens", "failures"]
    parts = [
        f"## {data}: scores in %, with 95% intervals over problems; the last column is that of avg over repeats",
        markdown(["variant", *names, "repeats"], *score_rows),
        "Shares of samples in %, means per sample:",
        markdown(rates, *rate_rows),
    ]
    if pairs := list(_compare_variants(variants)):
        parts += [
            "Differences of avg, paired by problem, in points:",
            markdown(["variants", "problems", "difference"], *pairs),
        ]
    return parts


def _compare_variants(variants: Sequence[EvalResult]) -> Iterator[list[str]]:
    """Yield a row for every two variants that have problems in common."""
    for pair in combinations(variants, 2):
        first, second = (dict(zip(r.notes["task_ids"], r.scores["official"], strict=True)) for r in pair)
        if found := paired_difference(first, second):
            names = " − ".join(result.variant for result in pair)
            yield [names, str(found.n), format_score(found.to_json())]


def _show_score(score: Mapping[str, Any] | None) -> str:
    """Return mean and interval in per cent: 93.8 (91.2 to 95.9)."""
    return format_score(score and {"mean": score["mean"], "ci95": score["ci95_problems"]})


def _score_order(name: str) -> tuple[int, int]:
    kind, _, count = name.partition("@")
    return ("avg", "pass", "maj").index(kind), int(count)


def _show_interval(interval: Sequence[float] | None) -> str:
    return "–" if interval is None else f"({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
