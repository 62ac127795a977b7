"""Statistics of all variants as files: aime.json, aime.md, and EvalResults for the report.

An EvalResult is about problems: each score is a problem's mean over its k samples, and its turns and tokens are those
of all k together. Its `length` is the token budget of one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from benchmarks.aime.statistics import Statistics, difference
from core.report.stats import Estimate
from core.report.table import markdown
from core.runs.evaluation import EvalResult
from core.runs.files import Record, write_json, write_text
from core.runs.run_folder import RunFolder

PUBLISHED = (
    # name, our variant, per cent, source
    ("Qwen2.5-7B-Instruct, single call", "single", 10.0, "slime-agentic, 1 sample, T = 0, no box asked for"),
    ("AgentFlow 7B, trained", "agent", 26.7, "slime-agentic, eval_results.json after 100 steps, 1 sample, T = 0.7"),
    ("AgentFlow 7B, trained", "agent", 30.0, "slime-agentic, newest README, 1 sample, T = 0.7"),
    ("Qwen2.5-7B-Instruct, single call", "single", 6.7, "arXiv 2510.05592, Table 2"),
    ("AgentFlow 7B, untrained", "agent-untrained", 16.7, "arXiv 2510.05592, Table 2, mean of 3"),
    ("AgentFlow 7B, Flow-GRPO", "agent", 40.0, "arXiv 2510.05592, Table 2, mean of 3"),
)

DEPARTURES = (
    "all variants have one temperature, top-p and budget for a call, and all are asked for a box; the baseline was not",
    "an answer is graded by the integer rule on its last box; the published ones by GPT-4o or by rule and LLM",
    "k samples for each problem with intervals; published numbers rest on one to three",
)


def published_rows(budget: int) -> list[dict[str, Any]]:
    """Rows for `RunFolder.save_published`."""
    return [
        {"name": name, "data": "aime24", "length": budget, "score": percent / 100, "source": source, "variant": variant}
        for name, variant, percent, source in PUBLISHED
    ]


def eval_result(
    records: Sequence[Record], stats: Statistics, task_ids: Sequence[str], *, budget: int, seed: int, model: str
) -> EvalResult:
    """Of one variant on one data set; `records` are all its samples."""
    of = {task_id: [record for record in records if record["task_id"] == task_id] for task_id in task_ids}
    spent = [sum(turn["tokens"] for record in of[i] for turn in record["turns"]) for i in task_ids]
    lost = [of[i][0]["failure"] for i in task_ids if all(record["status"] == "failed" for record in of[i])]
    scores = stats.scores()
    return EvalResult(
        variant=records[0]["variant"],
        data=records[0]["data"],
        length=budget,
        seed=seed,
        n=len(task_ids),
        scores={"official": stats.avg, **{name: values for name, values in scores.items() if name[:3] != "avg"}},
        turns=[sum(len(record["turns"]) for record in of[i]) for i in task_ids],
        document_tokens=[0] * len(task_ids),
        seconds=sum(record["seconds"] for record in records),
        failures={kind: lost.count(kind) for kind in lost},
        model=model,
        policy_tokens=spent,
        notes={
            "task_ids": list(task_ids),
            "seconds_are": "of all samples together, however many ran at once",
            **summary(stats),
        },
    )


SHOWN_APART = ("tasks", "avg", "pass_at", "maj", "repeats")


def summary(stats: Statistics) -> dict[str, Any]:
    """All numbers of one variant, as JSON."""
    numbers = {name: value for name, value in asdict(stats).items() if name not in SHOWN_APART}
    scores = {
        name: {"mean": estimate.mean, "ci95_problems": [estimate.low, estimate.high]}
        for name, estimate in stats.estimates().items()
    }
    return {**numbers, "scores": scores, "ci95_repeats": None if stats.repeats is None else list(stats.repeats)}


def differences(variants: Mapping[str, Statistics]) -> dict[tuple[str, str], Estimate]:
    """Of every two variants that have problems in common."""
    found = {(a, b): difference(variants[a], variants[b]) for a, b in combinations(variants, 2)}
    return {pair: estimate for pair, estimate in found.items() if estimate is not None}


def write_results(folder: RunFolder, variants: Mapping[str, Mapping[str, Statistics]]) -> str:
    """Write aime.json and aime.md. `variants` is data set -> variant -> statistics. Returns the text of aime.md."""
    write_json(
        folder.path / "aime.json",
        {
            data: {
                "variants": {variant: summary(stats) for variant, stats in of_data.items()},
                "differences": {f"{a} - {b}": asdict(estimate) for (a, b), estimate in differences(of_data).items()},
            }
            for data, of_data in variants.items()
        },
    )
    text = "\n\n".join(part for data, of_data in variants.items() for part in _tables(data, of_data)) + "\n"
    write_text(folder.path / "aime.md", text)
    return text


def _tables(data: str, variants: Mapping[str, Statistics]) -> list[str]:
    scores = sorted({name: None for stats in variants.values() for name in stats.scores()}, key=_score_order)
    estimates = {variant: stats.estimates() for variant, stats in variants.items()}
    score_rows = [
        [variant, *(_interval(estimates[variant].get(name)) for name in scores), _span(stats.repeats)]
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
    pairs = [[f"{a} − {b}", str(found.n), _interval(found)] for (a, b), found in differences(variants).items()]
    rates = ["variant", "k", "truncated", "no answer", "parse errors", "tool errors", "turns", "tokens", "failures"]
    return [
        f"## {data}: scores in %, with 95% intervals over problems; the last column is that of avg over repeats",
        markdown(["variant", *scores, "repeats"], *score_rows),
        "Shares of samples in %, means per sample:",
        markdown(rates, *rate_rows),
        *(
            [
                "Differences of avg, paired by problem, in points:",
                markdown(["variants", "problems", "difference"], *pairs),
            ]
            * bool(pairs)
        ),
    ]


def _score_order(name: str) -> tuple[int, int]:
    kind, _, count = name.partition("@")
    return ("avg", "pass", "maj").index(kind), int(count)


def _interval(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{100 * estimate.mean:.1f} {_span((estimate.low, estimate.high))}"


def _span(interval: tuple[float, float] | None) -> str:
    return "–" if interval is None else f"({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
