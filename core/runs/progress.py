"""This module shows the progress of a loop in a terminal or a log."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Progress:
    """Shows a bar in a terminal; elsewhere it prints one line every `interval` seconds and one for the last step.

    with Progress(200) as progress:
        progress.update(step, reward=0.4, tokens_per_second=30_000, failures=0)

    `start` is the last step before a resumed run goes on. `update` takes the number of steps done, counted from 1.
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
        self._total = total_steps
        self._label = label
        self._start = start
        self._interval = interval
        self._printed_at = -float("inf")
        self._started_at = 0.0
        self._bar: Bar | None = None
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            text = TextColumn("{task.fields[values]}", markup=False)
            self._bar = Bar(*columns, TimeRemainingColumn(), text, console=self._console)

    def __enter__(self) -> Progress:
        self._started_at = time.monotonic()
        if self._bar:
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._total, completed=self._start, values="")
        return self

    def update(self, step: int, **values: float) -> None:
        """Show `step` of the total with `values`; `failures` appears only when it is above 0."""
        text = "  ".join(
            f"{'tok/s' if name == 'tokens_per_second' else name} {_format_number(value)}"
            for name, value in values.items()
            if name != "failures" or value > 0
        )
        if self._bar:
            self._bar.update(self._task, completed=step, values=text)
            return
        now = time.monotonic()
        if now - self._printed_at >= self._interval or step >= self._total:
            self._printed_at = now
            elapsed = now - self._started_at
            left = elapsed / max(step - self._start, 1) * (self._total - step)
            line = f"{self._label} {step}/{self._total}  {elapsed:.0f} s, {left:.0f} s left  {text}"
            self._console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()


def _format_number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
