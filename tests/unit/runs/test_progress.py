from __future__ import annotations

import io
import re
import time

from rich.console import Console

from core.runs.progress import Progress, ProgressBoard


def test_a_log_gets_a_line_of_each_work_now_and_then_and_one_at_its_end() -> None:
    log = io.StringIO()
    with ProgressBoard(Console(file=log, width=100, force_terminal=False), interval=3600) as board:
        for label in ("seed 0", "seed 1"):
            with Progress(100, label, show=board.show) as progress:
                for step in range(1, 101):
                    progress.update(step, reward=step / 100, tokens_per_second=31234.5, failures=int(step == 100))
    lines = [
        line for label in ("seed 0", "seed 1") for line in (f"{label} 0/100  0 s", f"{label} 100/100  0 s, 0 s left")
    ]
    assert [re.sub(r"  reward 1  tok/s 31,234  failures 1$", "", line) for line in log.getvalue().splitlines()] == lines


def test_a_log_says_what_is_done_while_nothing_comes_of_it() -> None:
    log = io.StringIO()
    console = Console(file=log, width=100, force_terminal=False)
    with ProgressBoard(console, interval=0.05) as board, Progress(4, "seed 0", show=board.show) as progress:
        progress.tell("evaluating", 12, 64)
        deadline = time.monotonic() + 60
        while log.getvalue().count("seed 0 0/4  0 s  evaluating 12 of 64\n") < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_terminal_gets_a_bar_for_each_work_that_starts_where_the_run_resumed() -> None:
    terminal = io.StringIO()
    with ProgressBoard(Console(file=terminal, width=140, force_terminal=True)) as board:
        for seed in (0, 1):
            with Progress(100, f"seed {seed}", show=board.show) as progress:
                progress.resume(40)
                progress.update(41, reward=0.5)
    last = terminal.getvalue().rpartition("seed 0")[2]
    assert last.count("41/100") == last.count("reward 0.5") == 2
    assert "seed 1" in last
