"""This module makes the tables of a report: scores by length, means by variant, costs, published scores beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from core.types import CALLS

COMPARED = ("untrained", "trained")
"""Names the variants before and after training; a table of means shows the change between them."""

Cell = Mapping[str, Any]
"""Holds the numbers of one variant at one length, as core/report/summary.py describes them."""

Variants = Mapping[str, Mapping[str, Cell]]
"""Maps each variant to its cells by length."""

Table = list[list[str]]
"""Holds a header and then the rows."""


@dataclass(frozen=True, slots=True)
class PublishedScore:
    """A score of the paper in [0, 1], to compare with our `variant`; `length` is 0 for data without lengths."""

    name: str
    data: str
    length: int
    score: float
    source: str
    variant: str = "trained"
    metric: str = "official"

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> PublishedScore:
        unknown = row.keys() - {item.name for item in fields(cls)}
        if unknown:
            raise ValueError(f"published row has unknown field(s) {', '.join(sorted(unknown))}: {dict(row)}")
        return cls(**row)


def render_table(summary: Mapping[str, Any], published: Sequence[PublishedScore] = ()) -> str:
    """Return the content of table.md."""
    parts = [f"# {summary['method']} · preset {summary['preset']} · seeds {', '.join(map(str, summary['seeds']))}"]
    sections = data_sections(summary)
    for data, section in sections.items():
        for title, table in section_tables(data, section):
            parts += [f"## {title}", markdown(*table)]
    if not sections:
        parts.append("No evaluation yet.")
    if published:
        parts += ["## Published / ours", markdown(*published_table(published, sections))]
    if summary["departures"]:
        parts += ["Departures from the published setting:", "\n".join(f"- {line}" for line in summary["departures"])]
    return "\n\n".join(parts) + "\n"


def data_sections(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Map each data set to its `variants`, `retention` and `retention_fit`; the headline's comes first."""
    return {summary["data"]: summary, **summary["other_data"]} if summary["data"] else {}


def format_score(score: Mapping[str, Any] | None) -> str:
    """Format a mean and its interval in per cent: 93.8 (91.2 to 95.9)."""
    if score is None:
        return "–"
    low, high = score["ci95"]
    return f"{100 * score['mean']:.1f} ({100 * low:.1f} to {100 * high:.1f})"


ShowScore = Callable[[Mapping[str, Any] | None], str]
"""Formats a score for the page, the file or the terminal; None stands for a score that does not exist."""


def section_tables(data: str, section: Mapping[str, Any], show: ShowScore = format_score) -> list[tuple[str, Table]]:
    """Return the tables of one data set, each with its title."""
    variants = section["variants"]
    if has_lengths(variants):
        tables = [
            (f"{data} · {metric} score, mean and 95% CI in %", scores_table(section, metric, show))
            for metric in list_metrics(variants)
        ]
        return [*tables, (f"{data} · cost", cost_table(variants))]
    splits = [
        (f"{data} · by {label}, scores and shares in %", split_table(variants, label, show))
        for label in dict.fromkeys(label for cell in list_cells(variants) for label in cell["by"])
    ]
    return [(f"{data} · means, scores in % with 95% CI", means_table(variants, show)), *splits]


def scores_table(section: Mapping[str, Any], metric: str, show: ShowScore = format_score) -> Table:
    """Show one score by variant and length; the official score also has its fitted retention per turn."""
    variants = section["variants"]
    lengths = list_lengths(variants)
    header = ["variant", *map(format_length, lengths)]
    rows = [
        [variant, *(show(cells.get(str(length), {}).get(metric)) for length in lengths)]
        for variant, cells in variants.items()
    ]
    if metric == "official":
        header.append("r per turn")
        rows = [[*row, format_fit(section["retention_fit"][row[0]])] for row in rows]
    return [header, *rows]


def cost_table(variants: Variants) -> Table:
    """Show what each variant cost at each length."""
    rows = [
        [
            variant,
            format_length(int(length)),
            f"{cell['score']['n']:,}",
            f"{cell['tokens_per_task']:,.0f}",
            f"{cell['turns_per_task']:.1f}",
            "–" if cell["policy_tokens_per_1k_tokens"] is None else f"{cell['policy_tokens_per_1k_tokens']:,.0f}",
            "–" if cell["seconds_per_1k_tokens"] is None else f"{cell['seconds_per_1k_tokens']:.3g}",
            format_failures(cell["failures"]),
        ]
        for variant, cells in variants.items()
        for length, cell in cells.items()
    ]
    header = ["variant", "length", "tasks", "tokens / task", "turns / task", "policy tokens / 1K", "s / 1K tokens"]
    return [[*header, "failures"], *rows]


def means_table(variants: Variants, show: ShowScore = format_score) -> Table:
    """Show scores, measures and failures by variant, and the change by training, for data without lengths."""
    cells = {variant: variants[variant]["0"] for variant in order_variants(variants)}
    # A measure replaces our own number of the same name.
    numbers = {
        variant: {"turns": cell["turns_per_task"], "policy_tokens": cell["policy_tokens_per_task"], **cell["measures"]}
        for variant, cell in cells.items()
    }
    table: Table = []

    def add_row(name: str, texts: Iterable[str], change: str = "") -> None:
        row = [name, *texts]
        table.append([*row[:3], change, *row[3:]] if set(COMPARED) <= cells.keys() else row)

    def format_change(values: Mapping[str, float | None], form: str) -> str:
        before, after = (values.get(variant) for variant in COMPARED)
        return "–" if before is None or after is None else format(after - before, form)

    add_row("", cells, "change")
    for metric in list_metrics(variants):
        percents = {variant: 100 * cell[metric]["mean"] for variant, cell in cells.items() if metric in cell}
        add_row(f"{metric} score", (show(cell.get(metric)) for cell in cells.values()), format_change(percents, "+.1f"))
    for name in dict.fromkeys(
        name for values in numbers.values() for name, value in values.items() if value is not None
    ):
        means = {variant: values.get(name) for variant, values in numbers.items()}
        texts = ("–" if mean is None else format_number(mean) for mean in means.values())
        add_row(name.replace("_", " "), texts, format_change(means, "+.3g"))
    add_row("tasks", (f"{cell['score']['n']:,}" for cell in cells.values()))
    add_row("failures", (format_failures(cell["failures"]) for cell in cells.values()))
    return table


def split_table(variants: Variants, label: str, show: ShowScore = format_score) -> Table:
    """Split the scores, and the shares of the calls, by the values of `label`, for data without lengths."""
    cells = {variant: variants[variant]["0"] for variant in order_variants(variants)}
    metrics = list_metrics(variants)
    calls = dict.fromkeys(name for cell in cells.values() for name in cell["measures"] if name.startswith(CALLS))
    table = [[label, "variant", "tasks", *metrics, *(name.removeprefix(CALLS) for name in calls)]]
    for value in ("all", *sorted({value for cell in cells.values() for value in cell["by"].get(label, ())})):
        for variant, whole in cells.items():
            part = whole if value == "all" else whole["by"].get(label, {}).get(value)
            if part is not None:
                counts = [part["measures"].get(name, 0.0) for name in calls]
                shares = [f"{100 * count / sum(counts):.0f}" if sum(counts) else "–" for count in counts]
                scores = [show(part.get(metric)) for metric in metrics]
                table.append([value, variant, f"{part['score']['n']:,}", *scores, *shares])
    return table


def published_table(published: Sequence[PublishedScore], sections: Mapping[str, Any]) -> Table:
    """Show each published score beside ours of the same data, variant, length and metric, or a dash without one."""
    rows = []
    for row in published:
        variants = sections.get(row.data, {}).get("variants", {})
        ours = variants.get(row.variant, {}).get(str(row.length), {}).get(row.metric)
        difference = f"{100 * (ours['mean'] - row.score):+.1f}" if ours else "–"
        names = [row.name, row.data, format_length(row.length) if row.length else "–", row.metric]
        rows.append([*names, f"{100 * row.score:.1f}", format_score(ours), difference, row.source])
    return [["model", "data", "length", "score", "published", "ours", "difference", "source"], *rows]


def order_variants(variants: Variants) -> list[str]:
    """Return the untrained variant, the trained one, then the others in their order."""
    return sorted(variants, key=lambda variant: COMPARED.index(variant) if variant in COMPARED else len(COMPARED))


def list_cells(variants: Variants) -> list[Cell]:
    return [cell for cells in variants.values() for cell in cells.values()]


def list_metrics(variants: Variants) -> list[str]:
    """List the scores that any cell has, `official` first."""
    names = dict.fromkeys(
        name
        for cell in list_cells(variants)
        for name, value in cell.items()
        if name != "score" and isinstance(value, Mapping) and "ci95" in value
    )
    return sorted(names, key=lambda name: name != "official")


def list_lengths(variants: Variants) -> list[int]:
    return sorted({int(length) for cells in variants.values() for length in cells})


def has_lengths(variants: Variants) -> bool:
    return any(length > 0 for length in list_lengths(variants))


def format_length(length: int) -> str:
    """Format 7168 or 7000 as 7K, 1048576 as 1M, 7680 as 7.5K; below 1000 all digits stay."""
    for unit, suffix in ((10**6, "M"), (1024**2, "M"), (1000, "K"), (1024, "K")):
        if length >= unit and length % unit == 0:
            return f"{length // unit}{suffix}"
    return str(length) if length < 1000 else f"{length / 1024:.1f}K"


def format_number(value: float) -> str:
    """Format 1234.5 as 1,234 and smaller numbers with three digits: 12.3, 0.0123."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def format_fit(fit: Mapping[str, Any]) -> str:
    """Format retention as 0.9941, or as 0.9941 (2 at 0) when two lengths scored 0, which the fit leaves out."""
    zeros = f" ({fit['zeros']} at 0)" if fit["zeros"] else ""
    return "–" if fit["per_turn"] is None else f"{fit['per_turn']:.4f}{zeros}"


def format_failures(failures: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in failures.items()) or "0"


def markdown(header: Sequence[str], *rows: Sequence[str]) -> str:
    """Render a Markdown table; it escapes pipes and line breaks inside a cell."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )
