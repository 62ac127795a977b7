"""This module sends metrics to Weights & Biases, TensorBoard and MLflow on request.

Training never stops because a tracker fails: failures are counted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from core.config import Recipe
from core.runs.files import jsonable
from core.runs.run_folder import flatten


class Tracker(Protocol):
    """Takes metrics besides the run folder."""

    def log(self, step: int, metrics: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class Trackers:
    """Joins several trackers into one.

    It counts the failures of each in `failures`, shows the first of each at once, and their number at the end.
    """

    def __init__(self, trackers: Mapping[str, Tracker], show: Callable[[str], None] | None = None):
        self._trackers = dict(trackers)
        self._show = show or (lambda line: print(line, file=sys.stderr))
        self.failures: dict[str, int] = {}

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Send the numbers to every tracker; a mapping of numbers goes out as `name/key`, others are left out."""
        numbers = flatten_numbers(metrics)
        for name, tracker in self._trackers.items():
            self._guard(name, tracker.log, step, numbers)

    def close(self) -> None:
        for name, tracker in self._trackers.items():
            self._guard(name, tracker.close)
        for name, count in self.failures.items():
            if count > 1:
                self._show(f"tracker {name}: failed {count} times, so its curves are not whole; metrics.jsonl is")

    def start(self, name: str, make: Callable[[], Tracker]) -> None:
        """Add the tracker that `make` returns, or count a failure when it cannot start."""

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
    """Writes to `folder/wandb`; `mode` is `online`, `offline` or `disabled`.

    Online, a run that resumes goes on in its W&B run; offline, W&B cannot, and each start is a run. The step is a
    metric of its own, so that a resumed run may step back.
    """

    def __init__(self, folder: Path, run_name: str, project: str, config: Mapping[str, Any], mode: str):
        import wandb

        settings = wandb.Settings(silent=True)
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / "wandb-run-id"
        online = mode == "online"
        self._run = wandb.init(
            dir=str(folder),
            name=run_name,
            project=project,
            config=dict(config),
            mode=mode,  # type: ignore[arg-type]
            id=kept.read_text() if online and kept.exists() else None,
            resume="allow" if online else None,
            settings=settings,
        )
        if online:
            kept.write_text(self._run.id)
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._run.log({"step": step, **metrics})

    def close(self) -> None:
        self._run.finish()


class TensorBoardTracker:
    """Writes event files into `folder`. A resumed run hides what was written of the steps that it repeats."""

    def __init__(self, folder: Path):
        from torch.utils.tensorboard import SummaryWriter

        self._folder, self._open = str(folder), SummaryWriter
        self._writer: SummaryWriter | None = None

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._writer = self._writer or self._open(self._folder, purge_step=step)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class MLflowTracker:
    """Writes to an SQLite store in `folder`; a run that resumes goes on in its MLflow run."""

    def __init__(self, folder: Path, run_name: str, project: str, config: Mapping[str, Any]):
        self._client, _, self._run = open_mlflow(folder, run_name, project)
        self._client.log_dict(self._run, jsonable(config), "config.yaml")

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        self._client.log_batch(self._run, [Metric(name, value, now, step) for name, value in metrics.items()])

    def close(self) -> None:
        self._client.set_terminated(self._run)


def open_mlflow(folder: Path, run_name: str, project: str) -> tuple[Any, str, str]:
    """Open the store in `folder`; return MLflow's client, and the ids of the experiment and of the run `run_name`."""
    import mlflow

    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    client = mlflow.MlflowClient()
    known = client.get_experiment_by_name(project)
    if known is not None:
        experiment = known.experiment_id
    else:
        experiment = client.create_experiment(project, artifact_location=(folder / "artifacts").as_uri())
    runs = [run for run in client.search_runs([experiment]) if run.info.run_name == run_name]
    run = runs[0] if runs else client.create_run(experiment, run_name=run_name)
    return client, experiment, run.info.run_id


class TrackerError(ValueError):
    """Says that a tracker is not available; the message names the fix."""


def open_trackers(recipe: Recipe, folder: Path, run_name: str) -> Trackers:
    """Start the recipe's trackers, which write to `folder/<name>`; packages of other trackers are not imported.

    Raises:
        TrackerError: a package is not installed.
    """
    trackers, project, config = Trackers({}), recipe.method, recipe.dump()
    makers: dict[str, Callable[[], Tracker]] = {
        "wandb": lambda: WandbTracker(folder, run_name, project, config, recipe.run.tracker_mode),
        "tensorboard": lambda: TensorBoardTracker(folder / "tensorboard"),
        "mlflow": lambda: MLflowTracker(folder / "mlflow", run_name, project, config),
    }
    for name in recipe.run.trackers:
        require_package(name)
        trackers.start(name, makers[name])
    return trackers


def require_package(tracker: str) -> None:
    """Raise TrackerError if the package of a tracker is not installed."""
    try:
        __import__(tracker)
    except ImportError as error:
        raise TrackerError(f"run.trackers: {tracker} needs a package: pip install {tracker} ({error})") from None


def flatten_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Keep the numbers of nested metrics: {"failures": {"timeout": 2}, "stage": "eval"} -> {"failures/timeout": 2}."""
    numbers = {name: jsonable(value) for name, value in flatten(metrics, joint="/").items()}
    return {name: value for name, value in numbers.items() if isinstance(value, (int, float))}
