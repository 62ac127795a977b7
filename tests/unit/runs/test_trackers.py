from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from core.config import Recipe
from core.runs.trackers import Trackers, open_trackers
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
