"""Weights & Biases and TensorBoard, when asked for. Training never stops for a tracker: its failures are counted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from core.runs.files import jsonable


class Tracker(Protocol):
    """Where metrics go besides the run folder."""

    def log(self, step: int, metrics: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class Trackers:
    """Several trackers as one, each guarded: a failure is counted in `failures`, and the first of each one is shown."""

    def __init__(self, trackers: Mapping[str, Tracker], show: Callable[[str], None] | None = None):
        self._trackers = dict(trackers)
        self._show = show or (lambda line: print(line, file=sys.stderr))
        self.failures: dict[str, int] = {}

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Numbers are sent; a mapping of numbers goes out as `name/key`; anything else is left to the run folder."""
        numbers = flatten_numbers(metrics)
        for name, tracker in self._trackers.items():
            self._guard(name, tracker.log, step, numbers)

    def close(self) -> None:
        for name, tracker in self._trackers.items():
            self._guard(name, tracker.close)

    def start(self, name: str, make: Callable[[], Tracker]) -> None:
        """Add the tracker that `make` returns; without it when it cannot start."""

        def add() -> None:
            self._trackers[name] = make()

        self._guard(name, add)

    def _guard(self, name: str, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:  # whatever a tracker throws, training goes on
            self.failures[name] = self.failures.get(name, 0) + 1
            if self.failures[name] == 1:
                self._show(f"tracker {name}: {type(error).__name__}: {error}; training goes on, later ones are counted")


class WandbTracker:
    """Files in `folder/wandb`; `mode` is `online`, `offline` or `disabled`.

    The step is a metric of its own, so a resumed run may step back.
    """

    def __init__(self, folder: Path, run_name: str, project: str, config: Mapping[str, Any], mode: str):
        import wandb

        settings = wandb.Settings(silent=True)
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            dir=str(folder),
            name=run_name,
            project=project,
            config=dict(config),
            mode=mode,  # type: ignore[arg-type]
            settings=settings,
        )
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._run.log({"step": step, **metrics})

    def close(self) -> None:
        self._run.finish()


class TensorBoardTracker:
    """Event files in `folder`."""

    def __init__(self, folder: Path):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


KNOWN = {"wandb": "wandb", "tensorboard": "tensorboard"}
"""Tracker name -> the package it needs."""


class TrackerError(ValueError):
    """A tracker that cannot be had; the message names the fix."""


def open_trackers(
    names: Sequence[str],
    folder: Path,
    *,
    run_name: str,
    project: str,
    config: Mapping[str, Any],
    wandb_mode: str = "offline",
) -> Trackers:
    """Start the trackers asked for; their files lie in `folder/<name>`. Nothing of the others is imported.

    Raises:
        TrackerError: an unknown name, or one whose package is not installed.
    """
    trackers = Trackers({})
    makers: dict[str, Callable[[], Tracker]] = {
        "wandb": lambda: WandbTracker(folder, run_name, project, config, wandb_mode),
        "tensorboard": lambda: TensorBoardTracker(folder / "tensorboard"),
    }
    for name in names:
        if name not in makers:
            raise TrackerError(f"run.trackers: unknown tracker {name!r}; known: {', '.join(KNOWN)}")
        try:
            __import__(KNOWN[name])
        except ImportError as error:
            raise TrackerError(f"run.trackers: {name} needs a package: pip install {KNOWN[name]} ({error})") from None
        trackers.start(name, makers[name])
    return trackers


def flatten_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """{"loss": 1.0, "failures": {"timeout": 2}, "stage": "train"} -> {"loss": 1.0, "failures/timeout": 2}"""
    flat: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}/{key}": item for key, item in flatten_numbers(value).items()}
        elif isinstance(value, (int, float)) or hasattr(value, "item"):
            number = jsonable(value)
            if isinstance(number, (int, float)):
                flat[name] = number
    return flat
