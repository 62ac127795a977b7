"""Markdown: the table of arms by lengths, and the table `published / ours` with every departure listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Published:
    """A number of the paper. `score` lies in [0, 1]; `arm` is the arm of ours that it is set against."""

    name: str
    data: str
    length: int
    score: float
    source: str
    arm: str = "trained"
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
        for metric in metrics_of(section["arms"]):
            parts.append(f"## {data} · {metric} score, mean and 95% CI in %")
            parts.append(markdown(*arms_table(section["arms"], metric, section["retention_fit"])))
        parts.append(f"## {data} · cost")
        parts.append(markdown(*cost_table(section["arms"])))
    if not sections:
        parts.append("No evaluation yet.")
    if published:
        parts += ["## Published / ours", markdown(*published_table(published, sections))]
    if summary["departures"]:
        parts += ["Departures from the published setting:", "\n".join(f"- {line}" for line in summary["departures"])]
    return "\n\n".join(parts) + "\n"


def arms_table(arms: Mapping[str, Any], metric: str, fits: Mapping[str, Any]) -> list[list[str]]:
    """A header, then arms by lengths; for the official score, which is the one fitted, retention per turn as well."""
    lengths = lengths_of(arms)
    official = metric == "official"
    header = ["arm", *(short_length(length) for length in lengths), *(["r per turn"] if official else [])]
    rows = []
    for arm, cells in arms.items():
        row = [arm, *(score_text(cells.get(str(length), {}).get(metric)) for length in lengths)]
        rows.append([*row, fit_text(fits[arm])] if official else row)
    return [header, *rows]


def cost_table(arms: Mapping[str, Any]) -> list[list[str]]:
    """What each cell cost; a header, then one row per cell. `cut` counts documents cut to fit a context."""
    rows = [
        [
            arm,
            short_length(int(length)),
            f"{cell['score']['n']:,}",
            f"{cell['tokens_per_task']:,.0f}",
            f"{cell['turns_per_task']:.1f}",
            "–" if cell["policy_tokens_per_1k_tokens"] is None else f"{cell['policy_tokens_per_1k_tokens']:,.0f}",
            "–" if cell["seconds_per_1k_tokens"] is None else f"{cell['seconds_per_1k_tokens']:.3g}",
            str(cell["documents_cut"]),
            failures_text(cell["failures"]),
        ]
        for arm, cells in arms.items()
        for length, cell in cells.items()
    ]
    header = ["arm", "length", "tasks", "tokens / task", "turns / task", "policy tokens / 1K", "s / 1K tokens", "cut"]
    return [[*header, "failures"], *rows]


def published_table(published: Sequence[Published], sections: Mapping[str, Any]) -> list[list[str]]:
    """A header, then each published row beside the same cell of ours; a dash where we have none."""
    rows = []
    for row in published:
        ours = sections.get(row.data, {}).get("arms", {}).get(row.arm, {}).get(str(row.length), {}).get(row.metric)
        difference = f"{100 * (ours['mean'] - row.score):+.1f}" if ours else "–"
        names = [row.name, row.data, short_length(row.length), row.metric]
        rows.append([*names, f"{100 * row.score:.1f}", score_text(ours), difference, row.source])
    return [["model", "data", "length", "score", "published", "ours", "difference", "source"], *rows]


def sections_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Data set -> its `arms` and `retention`, the headline's first."""
    return {summary["data"]: summary, **summary["other_data"]} if summary["data"] else {}


def metrics_of(arms: Mapping[str, Any]) -> list[str]:
    """Metrics that any cell has, `official` first."""
    names = {
        name: None
        for cells in arms.values()
        for cell in cells.values()
        for name, value in cell.items()
        if name != "score" and isinstance(value, Mapping) and "ci95" in value
    }
    return sorted(names, key=lambda name: name != "official")


def lengths_of(arms: Mapping[str, Any]) -> list[int]:
    return sorted({int(length) for cells in arms.values() for length in cells})


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
