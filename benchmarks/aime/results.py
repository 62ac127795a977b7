"""The results of all variants: EvalResults with all numbers, and the tables that the command prints.

An EvalResult has a score for each problem: the mean over its k samples. Its `length` is the token budget of one call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import combinations
from typing import Any

from benchmarks.aime.statistics import AimeStatistics, aime_statistics, difference
from benchmarks.harness.plan import EvalCell
from benchmarks.harness.run import build_result
from benchmarks.harness.samples import Samples, flat
from benchmarks.harness.tables import estimate_text
from core.report.stats import Estimate
from core.report.table import markdown
from core.runs.evaluation import EvalResult

NOT_IN_SUMMARY = ("tasks", "avg", "pass_at", "maj", "repeats")


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


def compare_variants(variants: Mapping[str, AimeStatistics]) -> dict[tuple[str, str], Estimate]:
    """Return the difference of every two variants that have problems in common."""
    found = {(a, b): difference(variants[a], variants[b]) for a, b in combinations(variants, 2)}
    return {pair: estimate for pair, estimate in found.items() if estimate is not None}


def describe_results(results: Mapping[str, Mapping[str, AimeStatistics]]) -> str:
    """Return the tables of data set -> variant -> statistics."""
    return "\n\n".join(part for data, variants in results.items() for part in _tables(data, variants))


def _tables(data: str, variants: Mapping[str, AimeStatistics]) -> list[str]:
    scores = sorted({name: None for stats in variants.values() for name in stats.scores()}, key=_score_order)
    estimates = {variant: stats.estimates() for variant, stats in variants.items()}
    score_rows = [
        [variant, *(estimate_text(estimates[variant].get(name)) for name in scores), _interval_text(stats.repeats)]
        for variant, stats in variants.items()
    ]
    rate_rows = [
        [
            variant,
            str(stats.k),
            *(
                f"{100 * rate:.1f}"
                for rate in (stats.truncated, stats.no_answer, stats.parse_errors, stats.tool_errors)
            ),
            f"{stats.mean_turns:.2f}",
            f"{stats.mean_tokens:,.0f}",
            ", ".join(f"{count} {kind}" for kind, count in stats.failures.items()) or "0",
        ]
        for variant, stats in variants.items()
    ]
    pairs = [[f"{a} − {b}", str(found.n), estimate_text(found)] for (a, b), found in compare_variants(variants).items()]
    rates = ["variant", "k", "truncated", "no answer", "parse errors", "tool errors", "turns", "tokens", "failures"]
    parts = [
        f"## {data}: scores in %, with 95% intervals over problems; the last column is that of avg over repeats",
        markdown(["variant", *scores, "repeats"], *score_rows),
        "Shares of samples in %, means per sample:",
        markdown(rates, *rate_rows),
    ]
    if pairs:
        parts += [
            "Differences of avg, paired by problem, in points:",
            markdown(["variants", "problems", "difference"], *pairs),
        ]
    return parts


def _score_order(name: str) -> tuple[int, int]:
    kind, _, count = name.partition("@")
    return ("avg", "pass", "maj").index(kind), int(count)


def _interval_text(interval: tuple[float, float] | None) -> str:
    return "–" if interval is None else f"({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
