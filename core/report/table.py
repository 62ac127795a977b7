"""Tables: arms by lengths or, for data without lengths, numbers by arms; `published / ours` with every departure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from core.report.evaluation import CALLS

CHANGE = ("untrained", "trained")
"""Before and after."""


@dataclass(frozen=True, slots=True)
class Published:
    """A number of the paper, set against our `arm`. `score` lies in [0, 1]; `length` is 0 for data without lengths."""

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
        if not has_lengths(section["arms"]):
            parts += [f"## {data} · means, scores in % with 95% CI", markdown(*flat_table(section["arms"]))]
            for label in labels_of(section["arms"]):
                parts += [
                    f"## {data} · by {label}, scores and shares in %",
                    markdown(*split_table(section["arms"], label)),
                ]
            continue
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


def flat_table(arms: Mapping[str, Any]) -> list[list[str]]:
    """Of data without lengths: a header, then scores, measures and failures by arm, with what training changed."""
    cells = {arm: arms[arm]["0"] for arm in before_and_after(arms)}
    numbers = {arm: _numbers(cell) for arm, cell in cells.items()}
    rows = []
    for metric in metrics_of(arms):
        scores = {arm: cell[metric] for arm, cell in cells.items() if metric in cell}
        change = _change({arm: 100 * score["mean"] for arm, score in scores.items()}, "+.1f")
        rows.append([f"{metric} score", change, *(score_text(scores.get(arm)) for arm in cells)])
    for name in dict.fromkeys(name for of_arm in numbers.values() for name in of_arm):
        values = {arm: of_arm[name] for arm, of_arm in numbers.items() if name in of_arm}
        texts = (number_text(values[arm]) if arm in values else "–" for arm in cells)
        rows.append([name.replace("_", " "), _change(values, "+.3g"), *texts])
    rows.append(["tasks", "", *(f"{cell['score']['n']:,}" for cell in cells.values())])
    rows.append(["failures", "", *(failures_text(cell["failures"]) for cell in cells.values())])
    compared = set(CHANGE) <= cells.keys()
    return [
        [name, *values[:2], *([change] * compared), *values[2:]]
        for name, change, *values in (["", "change", *cells], *rows)
    ]


def split_table(arms: Mapping[str, Any], label: str) -> list[list[str]]:
    """Of data without lengths: scores by value of the label and arm, and which share of the calls went where."""
    metrics, order = metrics_of(arms), before_and_after(arms)
    calls = dict.fromkeys(name for arm in order for name in arms[arm]["0"]["measures"] if name.startswith(CALLS))
    values = sorted({value for arm in order for value in arms[arm]["0"]["by"].get(label, ())})
    rows = []
    for value in ("all", *values):
        for arm in order:
            whole = arms[arm]["0"]
            cell = whole if value == "all" else whole["by"].get(label, {}).get(value)
            if cell is not None:
                made = sum(cell["measures"].get(name, 0.0) for name in calls)
                shares = [f"{100 * cell['measures'].get(name, 0.0) / made:.0f}" if made else "–" for name in calls]
                scores = [score_text(cell.get(metric)) for metric in metrics]
                rows.append([value, arm, f"{cell['score']['n']:,}", *scores, *shares])
    return [[label, "arm", "tasks", *metrics, *(name.removeprefix(CALLS) for name in calls)], *rows]


def before_and_after(arms: Mapping[str, Any]) -> list[str]:
    """The untrained arm, the trained one, then the others as they come."""
    return sorted(arms, key=lambda arm: CHANGE.index(arm) if arm in CHANGE else len(CHANGE))


def _numbers(cell: Mapping[str, Any]) -> dict[str, float]:
    """What is shown of a cell beside its scores; a measure goes before our own number of the same name."""
    numbers = {"turns": cell["turns_per_task"], "policy_tokens": cell["policy_tokens_per_task"], **cell["measures"]}
    return {name: value for name, value in numbers.items() if value is not None}


def _change(values: Mapping[str, float], form: str) -> str:
    before, after = (values.get(arm) for arm in CHANGE)
    return "–" if before is None or after is None else format(after - before, form)


def published_table(published: Sequence[Published], sections: Mapping[str, Any]) -> list[list[str]]:
    """A header, then each published row beside the same cell of ours; a dash where we have none."""
    rows = []
    for row in published:
        ours = sections.get(row.data, {}).get("arms", {}).get(row.arm, {}).get(str(row.length), {}).get(row.metric)
        difference = f"{100 * (ours['mean'] - row.score):+.1f}" if ours else "–"
        names = [row.name, row.data, short_length(row.length) if row.length else "–", row.metric]
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


def has_lengths(arms: Mapping[str, Any]) -> bool:
    return any(length > 0 for length in lengths_of(arms))


def labels_of(arms: Mapping[str, Any]) -> list[str]:
    """Labels by which any cell is split."""
    return list(dict.fromkeys(label for cells in arms.values() for cell in cells.values() for label in cell["by"]))


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
