"""RunFolder: the one folder that every run leaves, and from which it resumes.

    config.yaml               the resolved recipe; a folder belongs to one recipe for good
    versions.json             python, packages, git commit, CPU and GPU
    published.json            the paper's rows and our departures (see core/report/table.py)
    warm_start/               the model of a cold start, where the method has one
    seed-<n>/metrics.jsonl        one object per step: {"stage": "warm_start" | "train" | "eval", "step": int, ...}
    seed-<n>/trajectories.jsonl   sampled whole trajectories, schema below
    seed-<n>/checkpoints/         Hugging Face folders
    evaluation/*.json         one EvalResult per variant, data set, length and seed
    evaluation/*.jsonl        the samples of the result of that name (benchmarks/harness/samples.py)
    summary.json, table.md, report.html     rebuilt at any time by `python -m core.report RUN_DIR`
    .lock                     held by the process that writes this run

Metric names that the report knows: `reward`, `loss`, `kl`, `tokens_per_second`, `seconds` (of that step; summed per
stage), `failures` and `drift` (a count, or a mapping kind -> count). Every other number gets its own small chart.

A trajectory for the viewer, texts decoded for showing only:
    {"stage", "step", "task_id", "question", "answers": [...], "reward": float | null, "status",
     "turns": [{"role", "trained", "prompt", "completion", "finish_reason", "tokens"}],
     "metrics": {...}, "failure", "log": {...}}        and "variant", "data", "seed" when an evaluator ran it
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from core.runs.evaluation import EvalResult, load_evaluations
from core.runs.files import JsonlLog, Record, jsonable, read_json, read_jsonl, write_json, write_text
from core.runs.versions import collect_versions

CLOCKS = {"warm_start": 0, "train": 1, "eval": 1}
"""The order of stages. `eval` counts on the clock of `train`: its step is the training step that was evaluated."""


LOCK = ".lock"
"""It outlives `--fresh`: a lock on a file that is deleted and written anew would be two locks."""

MEGATRON = "torch_dist"
"""Checkpoints of a run on a cluster, which resumes from whatever lies there."""


class RunFolderError(ValueError):
    """The folder cannot be used for this run; the message says why and what to do."""


class StepLog(JsonlLog):
    """A JSON-lines log whose records carry `stage` and `step`, so that a resumed run can take back what it redoes."""

    def append(self, record: Mapping[str, Any]) -> None:
        """Raises ValueError when the stage is unknown or the step is not an integer."""
        if record.get("stage") not in CLOCKS:
            raise ValueError(f"{self.path}: stage must be one of {', '.join(CLOCKS)}, not {record.get('stage')!r}")
        if not isinstance(record.get("step"), int):
            raise ValueError(f"{self.path}: step must be an integer, not {record.get('step')!r}")
        super().append(record)

    def rewind(self, stage: str, step: int) -> int:
        """Keep what lay at or before `step` of `stage`, earlier stages whole. Returns how many records were dropped."""
        limit = (CLOCKS[stage], step)
        return self.keep(lambda record: (CLOCKS[record["stage"]], record["step"]) <= limit)


class RunFolder:
    """An existing run folder. `RunFolder.create` makes one, or opens the one to resume."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self._config_path.is_file():
            raise RunFolderError(f"{self.path} is not a run folder: it has no config.yaml")
        config = _read_config(self._config_path)
        self.config: dict[str, Any] = config

    @classmethod
    def create(
        cls, path: str | Path, config: Mapping[str, Any], *, fresh: bool = False, may_differ: Collection[str] = ()
    ) -> RunFolder:
        """Make the folder of this resolved recipe, or open it when it exists already.

        A folder in which nothing has been done yet takes any recipe. `fresh` deletes the earlier run first, unless a
        cluster has trained in it. `may_differ` names dotted keys (and what lies under them) that a resumed run may
        change; the folder keeps the values it was created with.

        Raises:
            RunFolderError: the folder holds another recipe, or files that no run has written; with `fresh`, another
                process is writing it, or it holds checkpoints of Megatron.
        """
        path = Path(path)
        wanted = _plain(config)
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"{path} is a file; choose another --out")
        if (path / "config.yaml").is_file():
            changes = [] if fresh else _changes(path / "config.yaml", wanted, may_differ)
            if fresh and (path / MEGATRON).exists():
                raise RunFolderError(
                    f"{path / MEGATRON} was trained on a cluster, and --fresh does not delete that; move it away, or "
                    "choose another --out"
                )
            if changes and _begun(path):
                raise RunFolderError(
                    f"{path} belongs to another recipe; {len(changes)} key(s) differ:\n"
                    + "\n".join(changes)
                    + "\nChoose another --out, or delete that run (when training, with --fresh)."
                )
            if fresh or changes:
                with _locked(path):
                    _delete_run(path)
        elif path.is_dir() and any(not _is_leftover(entry) for entry in path.iterdir()):
            raise RunFolderError(f"{path} is not empty and not a run folder (no config.yaml); choose another --out")
        if not (path / "config.yaml").is_file():
            _write_config(path / "config.yaml", wanted)
        folder = cls(path)
        folder._record_versions()
        return folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing this run; the lock ends with the process, however it ends.

        Raises:
            RunFolderError: another process holds it.
        """
        with _locked(self.path):
            yield

    def go_on_with(self, config: Mapping[str, Any]) -> None:
        """Write down the recipe that the run goes on with; `create` has seen what may differ."""
        self.config = _plain(config)
        _write_config(self._config_path, self.config)

    def metrics(self, seed: int) -> StepLog:
        """Open the metrics of a seed for appending; a line torn by a crash is dropped."""
        return StepLog(self.seed_path(seed) / "metrics.jsonl")

    def trajectories(self, seed: int) -> StepLog:
        """Open the sampled trajectories of a seed for appending."""
        return StepLog(self.seed_path(seed) / "trajectories.jsonl")

    def read_metrics(self, seed: int) -> list[Record]:
        return list(read_jsonl(self.seed_path(seed) / "metrics.jsonl"))

    def read_trajectories(self, seed: int) -> list[Record]:
        return list(read_jsonl(self.seed_path(seed) / "trajectories.jsonl"))

    def save_evaluation(self, result: EvalResult) -> Path:
        return result.save(self.evaluation_path)

    def evaluations(self) -> list[EvalResult]:
        return load_evaluations(self.evaluation_path)

    def save_published(self, rows: Sequence[Mapping[str, Any]], departures: Sequence[str]) -> None:
        """Keep the paper's numbers (fields of `table.Published`) and our departures from it, for the report."""
        write_json(self.path / "published.json", {"rows": [dict(row) for row in rows], "departures": list(departures)})

    @property
    def published(self) -> dict[str, Any]:
        path = self.path / "published.json"
        return read_json(path) if path.is_file() else {"rows": [], "departures": []}

    @property
    def versions(self) -> dict[str, Any]:
        path = self.path / "versions.json"
        return read_json(path) if path.is_file() else {}

    @property
    def seeds(self) -> list[int]:
        """Seeds that have a sub-folder, in order."""
        names = (entry.name.removeprefix("seed-") for entry in self.path.glob("seed-*") if entry.is_dir())
        return sorted(int(name) for name in names if name.isdecimal())

    def seed_path(self, seed: int) -> Path:
        return self.path / f"seed-{seed}"

    def checkpoints_path(self, seed: int) -> Path:
        return self.seed_path(seed) / "checkpoints"

    @property
    def evaluation_path(self) -> Path:
        return self.path / "evaluation"

    @property
    def _config_path(self) -> Path:
        return self.path / "config.yaml"

    def _record_versions(self) -> None:
        """The first process writes the facts; one that resumes on other software or hardware adds its own."""
        now, before = collect_versions(), self.versions
        if not before:
            write_json(self.path / "versions.json", now)
            return
        resumed = before.get("resumed_with", [])
        if now not in ({key: value for key, value in before.items() if key != "resumed_with"}, *resumed):
            write_json(self.path / "versions.json", {**before, "resumed_with": [*resumed, now]})


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl  # not on Windows

    with (path / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(
                f"{path}: another process is writing this run; wait for it, end it, or choose another --out"
            ) from None
        yield


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys: {"train": {"lr": 1}} -> {"train.lr": 1}."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _changes(path: Path, wanted: Mapping[str, Any], may_differ: Collection[str]) -> list[str]:
    """One line for each key that differs."""
    held, asked = flatten(_read_config(path)), flatten(wanted)
    absent = object()
    return [
        f"  {key}: {_shown(held, key)} in the folder, {_shown(asked, key)} asked for"
        for key in sorted(held.keys() | asked.keys())
        if held.get(key, absent) != asked.get(key, absent)
        and not any(key == free or key.startswith(f"{free}.") for free in may_differ)
    ]


def _begun(path: Path) -> bool:
    """Whether there is anything to lose: a run that failed at its start leaves these files and empty logs."""
    files = (file for file in path.rglob("*") if file.is_file() and file.stat().st_size)
    return any(str(file.relative_to(path)) not in ("config.yaml", "versions.json", "published.json") for file in files)


def _shown(flat: Mapping[str, Any], key: str) -> str:
    return repr(flat[key]) if key in flat else "absent"


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise RunFolderError(f"{path} is not valid YAML ({error}); choose another --out") from None
    if not isinstance(config, dict):
        raise RunFolderError(f"{path} must be a mapping of recipe keys; choose another --out")
    return config


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """As it will be read again."""
    plain: dict[str, Any] = yaml.safe_load(yaml.safe_dump(jsonable(config)))
    return plain


def _write_config(path: Path, config: Mapping[str, Any]) -> None:
    write_text(path, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))


def _is_leftover(entry: Path) -> bool:
    """The lock, or the half-written file of an atomic write whose process died."""
    return entry.name == LOCK or (entry.name.startswith(".") and entry.name.endswith(".tmp"))


def _delete_run(path: Path) -> None:
    """Delete what a run writes and nothing else; config.yaml last, so that an interrupted deletion can be repeated."""
    for log in path.glob("evaluate-*.log"):
        log.unlink()
    for folder in (*path.glob("seed-*"), path / ".warm_start.partial", path / "evaluation", path / "warm_start"):
        if folder.is_dir():
            shutil.rmtree(folder)
    for name in ("versions.json", "published.json", "summary.json", "table.md", "report.html", "config.yaml"):
        (path / name).unlink(missing_ok=True)
