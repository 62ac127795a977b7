from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from core.runs.progress import Progress, ProgressBoard, show_rollout
from core.types import Completion, Trajectory, Turn


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


def test_the_first_rollout_is_shown_with_its_special_tokens_and_nothing_that_a_terminal_obeys() -> None:
    pieces = {1: b"<|im_start|>", 2: b"[bold]", 3: b"\x1b[2J", 4: "\u202e".encode(), 5: b"\xff", 6: b"x" * 500}

    def reply(*ids: int) -> Turn:
        return Turn("act", (1, 2), Completion(ids, (-1.0,) * len(ids), "stop"), trained=True)

    rollouts = [Trajectory("t", (), "failed"), Trajectory("t", (reply(3, 4, 5), *[reply(6)] * 3), reward=1.0)]
    shown = show_rollout(rollouts, lambda ids: [pieces[i] for i in ids]).splitlines()
    assert shown[:3] == [
        "the first rollout, completed, reward 1.0:",
        "  turn 1, prompt: <|im_start|>[bold]",
        "  turn 1, reply: \\x1b[2J\\u202e\ufffd",
    ]
    assert shown[4] == f"  turn 2, reply: {'x' * 200} [...] {'x' * 200}"
    assert shown[5:] == ["  and 2 turns more"]
