from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from core.runs.progress import Progress, ProgressBoard


def test_a_log_says_what_is_done_while_nothing_comes_of_it() -> None:
    log = io.StringIO()
    console = Console(file=log, width=100, force_terminal=False)
    with ProgressBoard(console, interval=0.05) as board, Progress(4, "seed 0", show=board.show) as progress:
        progress.tell("evaluating", 12, 64)
        deadline = time.monotonic() + 60
        while log.getvalue().count("seed 0 0/4  0 s  evaluating 12 of 64\n") < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_note_stays_and_is_never_markup(terminal: bool) -> None:
    log = io.StringIO()
    console = Console(file=log, width=100, force_terminal=terminal)
    with ProgressBoard(console) as board, Progress(4, "seed 0", show=board.show) as progress:
        progress.note("a reply: [red]no[/red] <|im_end|>\n  second line")
        progress.update(4)
    assert log.getvalue().count("seed 0: a reply: [red]no[/red] <|im_end|>\n  second line\n") == 1
