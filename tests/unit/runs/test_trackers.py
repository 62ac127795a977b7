"""What a run shows while it goes on: progress in a terminal, and metrics in the user's trackers."""

from __future__ import annotations

import io
import sys
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from core.config import Recipe
from core.runs.progress import Progress, ProgressBoard, show_rollout
from core.runs.trackers import TensorBoardTracker, Trackers, WandbTracker, open_trackers
from core.types import Completion, Trajectory, Turn
from tests import kit

RECIPE = kit.make_recipe(Recipe, run={"steps": 1, "trackers": ["wandb"], "tracker_mode": "online"})


class Recorder:
    def __init__(self, broken: bool = False):
        self.logged: list[tuple[int, dict]] = []
        self.closed = False
        self._broken = broken

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        if self._broken:
            raise ConnectionError("no network")
        self.logged.append((step, dict(metrics)))

    def close(self) -> None:
        self.closed = True
        if self._broken:
            raise ConnectionError("no network")


def test_a_broken_tracker_is_counted_and_shown_once_and_the_others_go_on() -> None:
    lines: list[str] = []
    good = Recorder()
    trackers = Trackers({"bad": Recorder(broken=True), "good": good}, show=lines.append)
    for step in range(3):
        trackers.log(step, {"loss": 1.0})
    trackers.close()
    assert good.logged == [(step, {"loss": 1.0}) for step in range(3)]
    assert good.closed
    assert trackers.failures == {"bad": 4}
    first, last = lines
    assert "bad" in first
    assert "no network" in first
    assert last.startswith("tracker bad: failed 4 times")


def test_a_tracker_that_cannot_start_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(Settings=dict))  # type: ignore[arg-type]
    trackers = open_trackers(RECIPE, tmp_path, "r")
    trackers.log(1, {"loss": 1.0})
    assert trackers.failures == {"wandb": 1}
    assert "has no attribute 'init'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mode", "asked"), [("online", [(None, "allow"), ("w1", "allow")]), ("offline", [(None, None)] * 2)]
)
def test_a_resumed_run_goes_on_in_its_wandb_run_where_wandb_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, asked: list[Any]
) -> None:
    import wandb

    seen = []

    def init(**settings: Any) -> types.SimpleNamespace:
        seen.append((settings["id"], settings["resume"]))
        return types.SimpleNamespace(id=settings["id"] or "w1", define_metric=lambda *names, **options: None)

    monkeypatch.setattr(wandb, "init", init)
    for _ in range(2):
        WandbTracker(tmp_path, "run", "memagent", {}, mode)
    assert seen == asked


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


def test_a_resumed_run_has_each_step_once_in_tensorboard(tmp_path: Path) -> None:
    """Whoever resumes at step 2 logs steps 2 and 3 again; one that has nothing to log writes no file."""
    for steps in (range(4), range(2, 6), range(0)):
        tracker = TensorBoardTracker(tmp_path)
        for step in steps:
            tracker.log(step, {"train/loss": float(len(steps) + step)})
        tracker.close()
    read = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in read.Scalars("train/loss")] == list(range(6))
    assert len(list(tmp_path.iterdir())) == 2
