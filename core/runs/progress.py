"""This module shows how far pieces of work are: a line for each, renewed in a terminal, and now and then in a log.

It also writes a rollout as text for the console.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from core.runs.record import TokenBytes
from core.types import Trajectory

LOG_SECONDS = 15.0
"""Says how often a log gets a line of each piece of work, also when nothing has come of it meanwhile."""
SHOWN_TURNS = 2
SHOWN_CHARACTERS = 400
"""Limit what is shown of a rollout."""


@dataclass(frozen=True)
class ProgressLine:
    """Holds how far a piece of work is; a process can send it to another one."""

    label: str
    done: int
    total: int
    start: int = 0
    """Counts what an earlier process has done of it."""
    text: str = ""
    ended: bool = False
    note: str = ""
    """Holds what stays on the console, above what is renewed."""


Show = Callable[[ProgressLine], None]


class ProgressBoard:
    """Shows pieces of work side by side: bars in a terminal, lines in a log. `show` may be called in any thread."""

    def __init__(self, console: Console | None = None, interval: float = LOG_SECONDS):
        self._console = console or Console()
        self._interval = interval
        self._lines: dict[str, ProgressLine] = {}
        self._began: dict[str, float] = {}
        self._printed: dict[str, float] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._bars: Bars | None = None
        self._tasks: dict[str, int] = {}
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
            text = TextColumn("{task.fields[text]}", markup=False)
            self._bars = Bars(*columns, TimeRemainingColumn(), text, console=self._console)

    def __enter__(self) -> ProgressBoard:
        if self._bars:
            self._bars.start()
        else:
            threading.Thread(target=self._keep_printing, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._bars:
            self._bars.stop()

    def show(self, line: ProgressLine) -> None:
        """Show `line` in place of the one before it with the same label."""
        with self._lock:
            if line.note:
                self._console.print(f"{line.label}: {line.note}", markup=False, highlight=False, soft_wrap=True)
                line = replace(line, note="")
            self._lines[line.label] = line
            self._began.setdefault(line.label, time.monotonic())
            if self._bars:
                if line.label not in self._tasks:
                    self._tasks[line.label] = self._bars.add_task(line.label, total=line.total or None, text="")
                task = self._bars.tasks[self._tasks[line.label]]
                self._bars.update(task.id, total=line.total or None, completed=line.done, text=line.text)
                if line.ended:
                    self._bars.stop_task(task.id)
            elif line.ended or self._is_due(line):
                self._print(line)

    def _keep_printing(self) -> None:
        """Print the lines of work from which nothing was heard, until the board is closed."""
        while not self._closed.wait(self._interval / 10):
            with self._lock:
                for line in self._lines.values():
                    if not line.ended and self._is_due(line):
                        self._print(line)

    def _is_due(self, line: ProgressLine) -> bool:
        return time.monotonic() - self._printed.get(line.label, -float("inf")) >= self._interval

    def _print(self, line: ProgressLine) -> None:
        self._printed[line.label] = now = time.monotonic()
        elapsed = now - self._began[line.label]
        clock = f"{elapsed:.0f} s"
        if line.total and line.done > line.start:
            clock += f", {elapsed / (line.done - line.start) * (line.total - line.done):.0f} s left"
        counts = f" {line.done}/{line.total}" if line.total else ""
        text = f"{line.label}{counts}  {clock}  {line.text}".rstrip()
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class Progress:
    """Tells a board how far one piece of work is; without `show` it has a board of its own.

    with Progress(200) as progress:
        progress.tell("sampling", 3, 64)
        progress.update(step, reward=0.4, tokens_per_second=30_000, failures=0)

    `start` is the last step before a resumed run goes on. `update` takes the number of steps done, counted from 1. A
    `total` of 0 says that nobody knows how long the work takes.
    """

    def __init__(self, total: int, label: str = "train", *, start: int = 0, show: Show | None = None):
        self._board = ProgressBoard() if show is None else None
        self._show = show or (lambda line: None)
        self._line = ProgressLine(label, start, total, start)
        self._values = ""

    def __enter__(self) -> Progress:
        if self._board:
            self._show = self._board.__enter__().show
        self._show(self._line)
        return self

    def update(self, step: int, **values: float | None) -> None:
        """Show `step` of the total with the `values` that there are; `failures` appears only when it is above 0."""
        self._values = "  ".join(
            f"{'tok/s' if name == 'tokens_per_second' else name} {format_number(value)}"
            for name, value in values.items()
            if value is not None and (name != "failures" or value > 0)
        )
        self._change(done=step, text=self._values)

    def resume(self, step: int) -> None:
        """Say that an earlier process has done the first steps."""
        self._change(done=step, start=step)

    def tell(self, activity: str, done: int = 0, total: int = 0) -> None:
        """Say beside the values what is being done now, and how much of it."""
        counts = f" {done} of {total}" if total else ""
        self._change(text=f"{self._values}  {activity}{counts}".lstrip())

    def note(self, text: str) -> None:
        """Say something that stays on the console."""
        self._show(replace(self._line, note=text))

    def _change(self, **fields: object) -> None:
        self._line = replace(self._line, **fields)  # type: ignore[arg-type]
        self._show(self._line)

    def __exit__(self, *_: object) -> None:
        self._change(text=self._values, ended=True)
        if self._board:
            self._board.__exit__()


def format_number(value: float) -> str:
    """Format 1234.5 as 1,234 and smaller numbers with three digits: 12.3, 0.0123."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def show_rollout(trajectories: Sequence[Trajectory], token_bytes: TokenBytes) -> str:
    """Write the first rollout that has a turn as text, cut short. It has its special tokens, and no control characters:
    a terminal obeys those."""
    rollout = next((trajectory for trajectory in trajectories if trajectory.turns), trajectories[0])
    lines = [f"the first rollout, {rollout.status}, reward {rollout.reward}:"]
    for number, turn in enumerate(rollout.turns[:SHOWN_TURNS], 1):
        for name, ids in (("prompt", turn.prompt_ids), ("reply", turn.completion.token_ids)):
            text = b"".join(token_bytes(ids)).decode("utf-8", "replace")
            text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
            half = SHOWN_CHARACTERS // 2
            shown = text if len(text) <= 2 * half else f"{text[:half]} [...] {text[-half:]}"
            lines.append(f"  turn {number}, {name}: {shown}")
    more = len(rollout.turns) - SHOWN_TURNS
    return "\n".join(lines + [f"  and {more} turns more"] * (more > 0))
