from __future__ import annotations

import io
import re

from rich.console import Console

from core.runs.progress import Progress


def test_a_log_gets_a_line_now_and_then_and_one_at_the_end() -> None:
    log = io.StringIO()
    with Progress(100, interval=3600, console=Console(file=log, width=100, force_terminal=False)) as progress:
        for step in range(1, 101):
            progress.update(step, reward=step / 100, tokens_per_second=31234.5, failures=int(step == 100))
    assert [re.sub(r"\d+ s left", "N s left", line) for line in log.getvalue().splitlines()] == [
        "train 1/100  0 s, N s left  reward 0.01  tok/s 31,234",
        "train 100/100  0 s, N s left  reward 1  tok/s 31,234  failures 1",
    ]


def test_a_terminal_gets_a_bar_that_starts_where_the_run_resumed() -> None:
    terminal = io.StringIO()
    with Progress(100, start=40, console=Console(file=terminal, width=140, force_terminal=True)) as progress:
        progress.update(41, reward=0.5)
    assert "41/100" in terminal.getvalue()
    assert "reward 0.5" in terminal.getvalue()
