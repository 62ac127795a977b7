from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from core.runs.trackers import TrackerError, Trackers, flatten_numbers, open_trackers


class Recorder:
    def __init__(self, broken: bool = False):
        self.logged: list[tuple[int, dict]] = []
        self.closed = 0
        self.broken = broken

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        if self.broken:
            raise ConnectionError("no network")
        self.logged.append((step, dict(metrics)))

    def close(self) -> None:
        self.closed += 1
        if self.broken:
            raise ConnectionError("no network")


def test_a_broken_tracker_is_counted_and_shown_once_and_the_others_go_on() -> None:
    shown: list[str] = []
    good, bad = Recorder(), Recorder(broken=True)
    trackers = Trackers({"bad": bad, "good": good}, show=shown.append)
    for step in range(3):
        trackers.log(step, {"loss": 1.0})
    trackers.close()
    assert good.logged == [(step, {"loss": 1.0}) for step in range(3)]
    assert good.closed == 1
    assert trackers.failures == {"bad": 4}
    assert len(shown) == 1
    assert "bad" in shown[0]
    assert "no network" in shown[0]


def test_only_numbers_go_out() -> None:
    metrics = {"stage": "train", "loss": 0.5, "nan": float("nan"), "failures": {"timeout": 2, "why": "slow"}, "n": None}
    assert flatten_numbers(metrics) == {"loss": 0.5, "failures/timeout": 2}


def test_nothing_is_imported_unless_asked_for() -> None:
    program = (
        "import sys, pathlib; from core.runs.trackers import open_trackers\n"
        "open_trackers([], pathlib.Path('.'), run_name='r', project='p', config={}).log(1, {'loss': 1.0})\n"
        "print([name for name in ('wandb', 'tensorboard', 'torch') if name in sys.modules])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root)
    assert done.stdout.strip() == "[]", done.stderr


def test_wandb_gets_mode_and_folder_and_may_step_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    logged: list[dict] = []

    class Run:
        def define_metric(self, name: str, step_metric: str) -> None:
            asked["step_metric"] = step_metric

        def log(self, metrics: dict) -> None:
            logged.append(metrics)

        def finish(self) -> None:
            asked["finished"] = True

    def init(**options: Any) -> Run:
        asked.update(options)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init, Settings=dict))  # type: ignore[arg-type]
    trackers = open_trackers(["wandb"], tmp_path, run_name="seed-0", project="p", config={"a": 1}, wandb_mode="offline")
    trackers.log(5, {"loss": 1.0})
    trackers.log(4, {"loss": 0.5})
    trackers.close()
    assert (asked["mode"], asked["dir"], asked["step_metric"]) == ("offline", str(tmp_path), "step")
    assert logged == [{"step": 5, "loss": 1.0}, {"step": 4, "loss": 0.5}]
    assert asked["finished"]
    assert trackers.failures == {}


def test_a_tracker_that_cannot_start_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def init(**_: Any) -> None:
        raise RuntimeError("no login")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init, Settings=dict))  # type: ignore[arg-type]
    trackers = open_trackers(["wandb"], tmp_path, run_name="r", project="p", config={}, wandb_mode="online")
    trackers.log(1, {"loss": 1.0})
    assert trackers.failures == {"wandb": 1}
    assert "no login" in capsys.readouterr().err


def test_tensorboard_writes_what_it_is_told(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trackers = open_trackers(["tensorboard"], tmp_path, run_name="r", project="p", config={})
    trackers.log(3, {"train/loss": 0.25, "stage": "train"})
    trackers.close()
    assert trackers.failures == {}
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(3, 0.25)]


def test_unknown_and_missing_trackers_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrackerError, match=r"run\.trackers: unknown tracker 'wandbb'; known: wandb, tensorboard"):
        open_trackers(["wandbb"], tmp_path, run_name="r", project="p", config={})
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(TrackerError, match="pip install wandb"):
        open_trackers(["wandb"], tmp_path, run_name="r", project="p", config={})
