"""The table of variants in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from core.report.table import failures_text, fit_text, has_lengths, lengths_of, metrics_of, short_length


def print_summary(summary: Mapping[str, Any], console: Console | None = None) -> None:
    """One table per score of the headline data set, then rewards, seconds, failures and drift in a line each."""
    console = console or Console()
    variants = summary["variants"]
    about = f"{summary['method']} · {summary['preset']} · {summary['data']}"
    if variants and not has_lengths(variants):
        metrics, flat = metrics_of(variants), {variant: cells["0"] for variant, cells in variants.items()}
        rows = [
            [variant, *(_score(cell.get(name)) for name in metrics), f"{cell['turns_per_task']:.1f}",
             failures_text(cell["failures"])]
            for variant, cell in flat.items()
        ]  # fmt: skip
        _print_table(console, f"{about} · % (95% CI)", ["variant", *metrics, "turns", "failures"], rows)
    for metric in metrics_of(variants) if has_lengths(variants) else ():
        header = [
            "variant",
            *map(short_length, lengths_of(variants)),
            *(["r per turn"] if metric == "official" else []),
        ]
        rows = [
            [variant, *(_score(cells.get(str(n), {}).get(metric)) for n in lengths_of(variants))]
            for variant, cells in variants.items()
        ]
        if metric == "official":
            rows = [[*row, fit_text(summary["retention_fit"][row[0]])] for row in rows]
        _print_table(console, f"{about} · {metric}, % (95% CI)", header, rows)
    if not variants:
        console.print("no evaluation yet")
    if summary["other_data"]:
        console.print(f"other data, see table.md: {escape(', '.join(summary['other_data']))}")
    for seed, reward in summary["reward"].items():
        if reward["first"] is not None:
            console.print(f"seed {seed}: training reward {reward['first']:.3f} at first, {reward['last']:.3f} at last")
    if summary["seconds"]:
        console.print("seconds: " + ", ".join(f"{stage} {value:,.0f}" for stage, value in summary["seconds"].items()))
    for name, counts in summary["counts"].items():
        if counts:
            console.print(f"{name}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))


def _print_table(console: Console, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=escape(title), title_justify="left", box=SIMPLE)
    for place, name in enumerate(header):
        table.add_column(escape(name), no_wrap=place == 0, justify="right" if place else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def _score(cell: Mapping[str, Any] | None) -> str:
    """Mean over interval, on two lines: a table of seven lengths still fits a terminal."""
    return f"{100 * cell['mean']:.1f}\n{100 * cell['ci95'][0]:.0f}–{100 * cell['ci95'][1]:.0f}" if cell else "–"
