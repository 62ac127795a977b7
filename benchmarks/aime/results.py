"""The results of all variants: EvalResults with all numbers, and the tables that the command prints.

An EvalResult has a score for each problem: the mean over its k samples. Its `length` is the token budget of one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from benchmarks.aime.statistics import AimeStatistics, aime_statistics
from benchmarks.harness.plan import EvalCell
from benchmarks.harness.run import build_result
from benchmarks.harness.samples import Samples, flat
from benchmarks.harness.statistics import paired_difference
from core.report.table import format_score, markdown
from core.runs.evaluation import EvalResult

NOT_IN_SUMMARY = ("avg", "pass_at", "maj", "repeats")


def aime_result(cell: EvalCell, samples: Samples) -> EvalResult:
    """Build the result of one variant on one data set."""
    stats = aime_statistics(flat(samples))
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
