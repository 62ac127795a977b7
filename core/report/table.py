"""Tables: variants by lengths or, for data without lengths, numbers by variants; `published / ours` with every departure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from core.types import CALLS

CHANGE = ("untrained", "trained")
"""Before and after."""


@dataclass(frozen=True, slots=True)
class Published:
    """A number of the paper, set against our `variant`. `score` lies in [0, 1]; `length` is 0 for data without lengths."""

    name: str
    data: str
    length: int
    score: float
    source: str
    variant: str = "trained"
    metric: str = "official"

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Published:
        unknown = row.keys() - {item.name for item in fields(cls)}
        if unknown:
            raise ValueError(f"published row has unknown field(s) {', '.join(sorted(unknown))}: {dict(row)}")
        return cls(**row)


def render_table(summary: Mapping[str, Any], published: Sequence[Published] = ()) -> str:
    """The content of table.md."""
    parts = [f"# {summary['method']} · preset {summary['preset']} · seeds {', '.join(map(str, summary['seeds']))}"]
    sections = sections_of(summary)
    for data, section in sections.items():
        if not has_lengths(section["variants"]):
            parts += [f"## {data} · means, scores in % with 95% CI", markdown(*flat_table(section["variants"]))]
            for label in labels_of(section["variants"]):
                parts += [
                    f"## {data} · by {label}, scores and shares in %",
                    markdown(*split_table(section["variants"], label)),
                ]
            continue
        for metric in metrics_of(section["variants"]):
            parts.append(f"## {data} · {metric} score, mean and 95% CI in %")
            parts.append(markdown(*variants_table(section["variants"], metric, section["retention_fit"])))
        parts.append(f"## {data} · cost")
        parts.append(markdown(*cost_table(section["variants"])))
    if not sections:
        parts.append("No evaluation yet.")
    if published:
        parts += ["## Published / ours", markdown(*published_table(published, sections))]
    if summary["departures"]:
        parts += ["Departures from the published setting:", "\n".join(f"- {line}" for line in summary["departures"])]
    return "\n\n".join(parts) + "\n"


def variants_table(variants: Mapping[str, Any], metric: str, fits: Mapping[str, Any]) -> list[list[str]]:
    """A header, then variants by lengths; for the official score, which is the one fitted, retention per turn as well."""
    lengths = lengths_of(variants)
    official = metric == "official"
    header = ["variant", *(short_length(length) for length in lengths), *(["r per turn"] if official else [])]
    rows = []
    for variant, cells in variants.items():
        row = [variant, *(score_text(cells.get(str(length), {}).get(metric)) for length in lengths)]
        rows.append([*row, fit_text(fits[variant])] if official else row)
    return [header, *rows]


def cost_table(variants: Mapping[str, Any]) -> list[list[str]]:
    """What each cell cost; a header, then one row per cell. `cut` counts documents cut to fit a context."""
    rows = [
        [
            variant,
            short_length(int(length)),
            f"{cell['score']['n']:,}",
            f"{cell['tokens_per_task']:,.0f}",
            f"{cell['turns_per_task']:.1f}",
            "–" if cell["policy_tokens_per_1k_tokens"] is None else f"{cell['policy_tokens_per_1k_tokens']:,.0f}",
            "–" if cell["seconds_per_1k_tokens"] is None else f"{cell['seconds_per_1k_tokens']:.3g}",
            str(cell["documents_cut"]),
            failures_text(cell["failures"]),
        ]
        for variant, cells in variants.items()
        for length, cell in cells.items()
    ]
    header = [
        "variant",
        "length",
        "tasks",
        "tokens / task",
        "turns / task",
        "policy tokens / 1K",
        "s / 1K tokens",
        "cut",
    ]
    return [[*header, "failures"], *rows]


def flat_table(variants: Mapping[str, Any]) -> list[list[str]]:
    """Of data without lengths: a header, then scores, measures and failures by variant, with what training changed."""
    cells = {variant: variants[variant]["0"] for variant in before_and_after(variants)}
    numbers = {variant: _numbers(cell) for variant, cell in cells.items()}
    rows = []
    for metric in metrics_of(variants):
        scores = {variant: cell[metric] for variant, cell in cells.items() if metric in cell}
        change = _change({variant: 100 * score["mean"] for variant, score in scores.items()}, "+.1f")
        rows.append([f"{metric} score", change, *(score_text(scores.get(variant)) for variant in cells)])
    for name in dict.fromkeys(name for of_variant in numbers.values() for name in of_variant):
        values = {variant: of_variant[name] for variant, of_variant in numbers.items() if name in of_variant}
        texts = (number_text(values[variant]) if variant in values else "–" for variant in cells)
        rows.append([name.replace("_", " "), _change(values, "+.3g"), *texts])
    rows.append(["tasks", "", *(f"{cell['score']['n']:,}" for cell in cells.values())])
    rows.append(["failures", "", *(failures_text(cell["failures"]) for cell in cells.values())])
    compared = set(CHANGE) <= cells.keys()
    return [
        [name, *values[:2], *([change] * compared), *values[2:]]
        for name, change, *values in (["", "change", *cells], *rows)
    ]


def split_table(variants: Mapping[str, Any], label: str) -> list[list[str]]:
    """Of data without lengths: scores by value of the label and variant, and which share of the calls went where."""
    metrics, order = metrics_of(variants), before_and_after(variants)
    calls = dict.fromkeys(
        name for variant in order for name in variants[variant]["0"]["measures"] if name.startswith(CALLS)
    )
    values = sorted({value for variant in order for value in variants[variant]["0"]["by"].get(label, ())})
    rows = []
    for value in ("all", *values):
        for variant in order:
            whole = variants[variant]["0"]
            cell = whole if value == "all" else whole["by"].get(label, {}).get(value)
            if cell is not None:
                made = sum(cell["measures"].get(name, 0.0) for name in calls)
                shares = [f"{100 * cell['measures'].get(name, 0.0) / made:.0f}" if made else "–" for name in calls]
                scores = [score_text(cell.get(metric)) for metric in metrics]
                rows.append([value, variant, f"{cell['score']['n']:,}", *scores, *shares])
    return [[label, "variant", "tasks", *metrics, *(name.removeprefix(CALLS) for name in calls)], *rows]


def before_and_after(variants: Mapping[str, Any]) -> list[str]:
    """The untrained variant, the trained one, then the others as they come."""
    return sorted(variants, key=lambda variant: CHANGE.index(variant) if variant in CHANGE else len(CHANGE))


def _numbers(cell: Mapping[str, Any]) -> dict[str, float]:
    """What is shown of a cell beside its scores; a measure goes before our own number of the same name."""
    numbers = {"turns": cell["turns_per_task"], "policy_tokens": cell["policy_tokens_per_task"], **cell["measures"]}
    return {name: value for name, value in numbers.items() if value is not None}


def _change(values: Mapping[str, float], form: str) -> str:
    before, after = (values.get(variant) for variant in CHANGE)
    return "–" if before is None or after is None else format(after - before, form)


def published_table(published: Sequence[Published], sections: Mapping[str, Any]) -> list[list[str]]:
    """A header, then each published row beside the same cell of ours; a dash where we have none."""
    rows = []
    for row in published:
        ours = (
            sections.get(row.data, {}).get("variants", {}).get(row.variant, {}).get(str(row.length), {}).get(row.metric)
        )
        difference = f"{100 * (ours['mean'] - row.score):+.1f}" if ours else "–"
        names = [row.name, row.data, short_length(row.length) if row.length else "–", row.metric]
        rows.append([*names, f"{100 * row.score:.1f}", score_text(ours), difference, row.source])
    return [["model", "data", "length", "score", "published", "ours", "difference", "source"], *rows]


def sections_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Data set -> its `variants` and `retention`, the headline's first."""
    return {summary["data"]: summary, **summary["other_data"]} if summary["data"] else {}


def metrics_of(variants: Mapping[str, Any]) -> list[str]:
    """Metrics that any cell has, `official` first."""
    names = {
        name: None
        for cells in variants.values()
        for cell in cells.values()
        for name, value in cell.items()
        if name != "score" and isinstance(value, Mapping) and "ci95" in value
    }
    return sorted(names, key=lambda name: name != "official")


def lengths_of(variants: Mapping[str, Any]) -> list[int]:
    return sorted({int(length) for cells in variants.values() for length in cells})


def has_lengths(variants: Mapping[str, Any]) -> bool:
    return any(length > 0 for length in lengths_of(variants))


def labels_of(variants: Mapping[str, Any]) -> list[str]:
    """Labels by which any cell is split."""
    return list(dict.fromkeys(label for cells in variants.values() for cell in cells.values() for label in cell["by"]))


def short_length(length: int) -> str:
    """7168 or 7000 -> 7K, 1048576 -> 1M; multiples of neither 1000 nor 1024 keep one decimal, below 1000 all digits."""
    for unit, suffix in ((10**6, "M"), (1024**2, "M"), (1000, "K"), (1024, "K")):
        if length >= unit and length % unit == 0:
            return f"{length // unit}{suffix}"
    return str(length) if length < 1000 else f"{length / 1024:.1f}K"


def score_text(cell: Mapping[str, Any] | None) -> str:
    """93.8 (91.2 to 95.9): mean and interval in per cent."""
    if cell is None:
        return "–"
    low, high = cell["ci95"]
    return f"{100 * cell['mean']:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def number_text(value: float) -> str:
    """1234.5 -> 1,234; 12.34 -> 12.3; 0.01234 -> 0.0123"""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def fit_text(fit: Mapping[str, Any]) -> str:
    """0.9941, or 0.9941 (2 at 0) when two lengths that scored 0 had to be left out of the fit."""
    left_out = f" ({fit['zeros']} at 0)" if fit["zeros"] else ""
    return "–" if fit["per_turn"] is None else f"{fit['per_turn']:.4f}{left_out}"


def failures_text(failures: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in failures.items()) or "0"


def markdown(header: Sequence[str], *rows: Sequence[str]) -> str:
    """A Markdown table; pipes and line breaks inside a cell are escaped."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
