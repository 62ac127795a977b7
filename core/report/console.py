"""This module prints the summary of a run in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from core.report.table import (
    Table,
    describe_kept,
    describe_signs,
    format_data,
    format_failures,
    group_metrics,
    has_lengths,
    list_metrics,
    scores_table,
)


def print_summary(summary: Mapping[str, Any], console: Console | None = None, *, scores: bool = True) -> None:
    """Print the scores of the headline data set, then rewards, seconds and counted events, one line each."""
    console = console or Console()
    if scores:
        _print_scores(summary, console)
    for seed, reward in summary["reward"].items():
        if reward["first"] is not None:
            console.print(
                f"seed {seed}: mean training reward {reward['first']:.3f} in the first {reward['steps']} steps, "
                f"{reward['last']:.3f} in the last"
            )
    for line in describe_kept(summary):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if summary["seconds"]:
        parts = (f"{part.replace('_', ' ')} {value:,.0f} s" for part, value in summary["seconds"].items())
        console.print(f"time by the clock: {', '.join(parts)}")
    for name, counts in summary["counts"].items():
        if counts:
            console.print(f"{name}: {format_failures(counts)}", markup=False)
    for line in describe_signs(summary):
        console.print(f"warning: {line}", markup=False, highlight=False, soft_wrap=True)


def _print_scores(summary: Mapping[str, Any], console: Console) -> None:
    """Print a table of the scores; metrics with the same scores share one."""
    variants, metrics = summary["variants"], list_metrics(summary["variants"])
    title = f"{summary['method']} · {summary['preset']} · {format_data(summary['data'] or '')}"
    if not variants:
        console.print("no table of held-out tasks yet: see tokentrue evaluate --help")
    elif has_lengths(variants):
        for same in group_metrics(variants):
            table = scores_table(summary, same[0], _two_lines)
            _print_table(console, f"{title} · {', '.join(same)}, % (95% CI)", table)
    else:
        table = [["variant", *metrics, "turns", "failures"]]
        for variant, cells in variants.items():
            cell = cells["0"]
            scores = [_two_lines(cell.get(metric)) for metric in metrics]
            table.append([variant, *scores, f"{cell['turns_per_task']:.1f}", format_failures(cell["failures"])])
        _print_table(console, f"{title} · % (95% CI)", table)
    if summary["other_data"]:
        console.print(f"other data, see table.md: {escape(', '.join(map(format_data, summary['other_data'])))}")


def _print_table(console: Console, title: str, table: Table) -> None:
    header, *rows = table
    grid = RichTable(title=escape(title), title_justify="left", box=SIMPLE)
    for column, name in enumerate(header):
        grid.add_column(escape(name), no_wrap=column == 0, justify="right" if column else "left")
    for row in rows:
        grid.add_row(*map(escape, row))
    console.print(grid)


def _two_lines(score: Mapping[str, Any] | None) -> str:
    """Put the mean above its interval, so that a table of seven lengths fits a terminal."""
    return f"{100 * score['mean']:.1f}\n{100 * score['ci95'][0]:.0f}–{100 * score['ci95'][1]:.0f}" if score else "–"
