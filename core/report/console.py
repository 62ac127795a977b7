"""The terminal: the table of arms, and the progress of a training loop."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from core.report.table import failures_text, fit_text, has_lengths, lengths_of, metrics_of, short_length


def print_summary(summary: Mapping[str, Any], console: Console | None = None) -> None:
    """One table per score of the headline data set, then rewards, seconds, failures and drift in a line each."""
    console = console or Console()
    arms = summary["arms"]
    about = f"{summary['method']} · {summary['preset']} · {summary['data']}"
    if arms and not has_lengths(arms):
        metrics, flat = metrics_of(arms), {arm: cells["0"] for arm, cells in arms.items()}
        rows = [
            [arm, *(_score(cell.get(name)) for name in metrics), f"{cell['turns_per_task']:.1f}",
             failures_text(cell["failures"])]
            for arm, cell in flat.items()
        ]  # fmt: skip
        _print_table(console, f"{about} · % (95% CI)", ["arm", *metrics, "turns", "failures"], rows)
    for metric in metrics_of(arms) if has_lengths(arms) else ():
        header = ["arm", *map(short_length, lengths_of(arms)), *(["r per turn"] if metric == "official" else [])]
        rows = [
            [arm, *(_score(cells.get(str(n), {}).get(metric)) for n in lengths_of(arms))] for arm, cells in arms.items()
        ]
        if metric == "official":
            rows = [[*row, fit_text(summary["retention_fit"][row[0]])] for row in rows]
        _print_table(console, f"{about} · {metric}, % (95% CI)", header, rows)
    if not arms:
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


class Progress:
    """Progress of a loop: a bar in a terminal, else one line every `interval` seconds and for the last step.

    with Progress(200) as progress:
        progress.update(step, reward=0.4, tokens_per_second=30_000, failures=0)

    `start` is the step already done when a run resumes; `update` takes the number of steps done, counted from 1.
    """

    def __init__(
        self,
        total_steps: int,
        label: str = "train",
        *,
        start: int = 0,
        interval: float = 5.0,
        console: Console | None = None,
    ):
        self._console = console or Console()
        self._total, self._label, self._start, self._interval = total_steps, label, start, interval
        self._printed_at = -float("inf")
        self._began = 0.0
        self._bar: Bar | None = None
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            text = TextColumn("{task.fields[values]}", markup=False)
            self._bar = Bar(*columns, TimeRemainingColumn(), text, console=self._console)

    def __enter__(self) -> Progress:
        self._began = time.monotonic()
        if self._bar:
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._total, completed=self._start, values="")
        return self

    def update(self, step: int, **values: float) -> None:
        """Show `step` of the total with the values; a value by the name of `failures` is left out while it is 0."""
        text = "  ".join(f"{_short(name)} {_number(value)}" for name, value in values.items() if _shown(name, value))
        if self._bar:
            self._bar.update(self._task, completed=step, values=text)
            return
        now = time.monotonic()
        if now - self._printed_at >= self._interval or step >= self._total:
            self._printed_at = now
            line = f"{self._label} {step}/{self._total}  {now - self._began:.0f} s  {text}"
            self._console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()


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


def _short(name: str) -> str:
    return {"tokens_per_second": "tok/s"}.get(name, name)


def _shown(name: str, value: float) -> bool:
    return name != "failures" or value > 0


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
