"""This module defines the run folder: the one folder that a run writes and resumes from.

    config.yaml                   the resolved recipe; a folder belongs to one recipe for good
    versions.json                 python, packages, git commit, CPU and GPU
    inputs.json                   hashes of data, models and code; what --accept-changes allowed (core/runs/inputs.py)
    published.json                the paper's numbers, and departures from its setting that no single result has
    warm_start/                   the model of the cold start, where the method has one
    seed-<n>/metrics.jsonl        one record per step: {"stage": "warm_start" | "train" | "eval", "step": int, ...}
    seed-<n>/rollouts.jsonl.gz    every token of the recorded rollouts (core/runs/record.py)
    seed-<n>/checkpoints/         Hugging Face folders
    seed-<n>/rejection/           `--baseline rejection`: rollouts.jsonl, metrics.jsonl, model/
    supervised/                   `--baseline supervised`: metrics.jsonl and model/
    evaluation/<name>.json        one EvalResult per variant, data set, length and seed (core/runs/evaluation.py)
    evaluation/<name>.jsonl.gz    every token of that result's samples, in the same form
    evaluation/.<name>.calls.jsonl    calls of samples that have not ended, until the result is there (ruler)
    summary.json, table.md, report.html, figure.svg  the report; `tokentrue report RUN_DIR` rebuilds it at any time
    view.html                     the tokens of some rollouts; `tokentrue inspect view RUN_DIR` chooses others
    clock.jsonl                   when the evaluators worked: {"part": "evaluation", "time", "seconds"}
    .lock                         the process that writes the run holds a lock on this file

Fields of metrics.jsonl that reports know are `reward`, `health` (core/runs/health.py) and `seconds`, the duration of
the step that ended at `time`. `failures` and the metrics of `core.types.COUNTED_METRICS` are counts, or mappings kind
-> count. Other numbers of training and warm start get small charts, the first twelve of each. `tokens_per_second`
counts what was sampled, and each prompt as often as it was sent.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import yaml

from core.config.load import drop_retired
from core.runs.evaluation import EvalResult, load_evaluations
from core.runs.files import (
    BrokenFileError,
    JsonlLog,
    Record,
    delete_half_written,
    hold_lock,
    jsonable,
    read_json,
    read_jsonl,
    write_json,
    write_text,
)
from core.runs.inputs import CODE, Hashes, collect_versions, list_input_changes

logger = logging.getLogger(__name__)

STAGE_ORDER = {"warm_start": 0, "train": 1, "eval": 1, "rejection": 0, "supervised": 0}
"""Orders the stages of a log. `eval` has the rank of `train`: its step is the training step that was evaluated. The
baselines have logs of their own."""

CLOCK = "clock.jsonl"
INPUTS = "inputs.json"
LOCK = ".lock"
"""Names the locked file. `--fresh` does not delete it: two processes could then lock two files of this name."""

VIEW_FILE = "view.html"
SERVERS = "servers"
"""Names the folder of the logs of rollout servers that the run started."""

CREATE_WAIT_S = 1.0
"""Bounds the wait for another process that creates the same folder, which takes it a moment."""

CLUSTER = ("torch_dist", "verl")
"""Names the folders of checkpoints that a cluster, slime's or verl's, writes and resumes from."""


class RunFolderError(ValueError):
    """Says that the folder cannot be used for this run; the message names the reason and the fix."""


def read_steps(path: Path) -> Iterator[Record]:
    """Yield the records of a log of steps. Raises BrokenFileError for one without a known stage and a step."""
    for record in read_jsonl(path):
        if str(record.get("stage")) not in STAGE_ORDER or not isinstance(record.get("step"), int):
            raise BrokenFileError(f"{path}: no `stage` or no `step` in {str(record)[:80]}; repair or delete that line")
        yield record


class StepLog(JsonlLog):
    """A JSON-lines log whose records carry `stage` and `step`; a resumed run deletes what it is going to repeat."""

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a record; one that took `seconds` gets its `time`."""
        super().append({**record, "time": time.time()} if "seconds" in record else record)

    def rewind(self, stage: str, step: int) -> int:
        """Delete the records after `step` of `stage` and return their number. Earlier stages stay whole."""
        last = (STAGE_ORDER[stage], step)
        list(read_steps(self.path))  # names a record that is none
        return self.keep(lambda record: (STAGE_ORDER[record["stage"]], record["step"]) <= last)


class RunFolder:
    """An existing run folder; `RunFolder.create` makes a new one, or opens the one to resume."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self._config_path.is_file():
            raise RunFolderError(f"{self.path} is not a run folder: it has no config.yaml")
        config = _read_config(self._config_path)
        self.config: dict[str, Any] = config

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: Mapping[str, Any],
        *,
        fresh: bool = False,
        may_differ: Collection[str] = (),
        complete: Callable[[dict[str, Any]], dict[str, Any]] = lambda old: old,
    ) -> RunFolder:
        """Create the folder for this resolved recipe, or open it when it exists already.

        A folder without results takes any recipe. `fresh` first deletes the earlier run, unless a cluster has trained
        in it. `may_differ` lists dotted keys that a resumed run may change, each with all keys below it; the folder
        keeps the old values until `update_config`. `complete` adds to a recipe of the folder, before it is compared,
        the keys that came after it.

        Raises:
            RunFolderError: the folder belongs to another recipe, or holds files that no run has written. With `fresh`:
                another process is writing it, or it holds checkpoints of a cluster.
        """
        path = Path(path)
        config_path = path / "config.yaml"
        new_config = _normalize(config)
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"{path} is a file; choose another --out")
        # The lock, and the half-written file of a process that died, are of a run that has not begun.
        names = [entry.name for entry in path.glob("*") if entry.name != LOCK]
        strangers = [name for name in names if not (name.startswith(".") and name.endswith(".tmp"))]
        if strangers and not config_path.is_file():
            raise RunFolderError(f"{path} is not empty and not a run folder (no config.yaml); choose another --out")
        with _lock(path, CREATE_WAIT_S):
            changes: list[str] = []
            if config_path.is_file() and not fresh:
                changes = _list_changes(_normalize(complete(_read_config(config_path))), new_config, may_differ)
            if fresh and (trained := [path / name for name in CLUSTER if (path / name).exists()]):
                raise RunFolderError(
                    f"{trained[0]} was trained on a cluster, and --fresh does not delete that; move it away, or "
                    "choose another --out"
                )
            if changes and _has_results(path):
                raise RunFolderError(
                    f"{path} belongs to another recipe; {len(changes)} key(s) differ:\n"
                    + "\n".join(changes)
                    + "\nChoose another --out, or delete that run (when training, with --fresh)."
                )
            if fresh or changes:
                _delete_run(path)
            if not config_path.is_file():
                _write_config(config_path, new_config)
            folder = cls(path)
            folder._record_versions()
        return folder

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing this run, and delete what killed ones left half written.

        The lock ends with the process, however the process ends.

        Raises:
            RunFolderError: another process holds the lock, or has made another run of this folder.
        """
        with _lock(self.path):
            if not self._config_path.is_file() or _read_config(self._config_path) != self.config:
                raise RunFolderError(
                    f"{self.path}: another process has changed this run meanwhile; run the command again"
                )
            for folder in (self.path, self.evaluation_path, *self.path.glob("seed-*")):
                delete_half_written(folder)
            yield

    def update_config(self, config: Mapping[str, Any]) -> None:
        """Replace config.yaml by the recipe that a resumed run uses; `create` has checked what may differ."""
        self.config = _normalize(config)
        _write_config(self._config_path, self.config)

    def open_metrics(self, seed: int) -> StepLog:
        """Open the metrics of a seed for appending, and delete a line torn by a crash."""
        return StepLog(self.seed_path(seed) / "metrics.jsonl")

    def rollouts_path(self, seed: int) -> Path:
        return self.seed_path(seed) / "rollouts.jsonl.gz"

    def read_metrics(self, seed: int) -> list[Record]:
        return list(read_steps(self.seed_path(seed) / "metrics.jsonl"))

    def save_evaluation(self, result: EvalResult) -> Path:
        return result.save(self.evaluation_path)

    def evaluations(self) -> list[EvalResult]:
        return load_evaluations(self.evaluation_path)

    @contextmanager
    def record_time(self, part: str) -> Iterator[None]:
        """Add the time that the block takes to clock.jsonl, which several processes may write at once."""
        began = time.time()
        try:
            yield
        finally:
            now = time.time()
            with (self.path / CLOCK).open("a") as file:
                file.write(json.dumps({"part": part, "time": now, "seconds": now - began}) + "\n")

    @property
    def clock(self) -> list[Record]:
        return list(read_jsonl(self.path / CLOCK))

    def save_published(
        self, rows: Sequence[Mapping[str, Any]], departures: Sequence[str], of_recipe: Sequence[str] = ()
    ) -> None:
        """Save the paper's numbers and our departures from its setting; a row has the fields of `PublishedScore`."""
        values = {"rows": [dict(row) for row in rows], "departures": list(departures), "of_recipe": list(of_recipe)}
        write_json(self.path / "published.json", values)

    @property
    def published(self) -> dict[str, Any]:
        path = self.path / "published.json"
        return {"rows": [], "departures": [], "of_recipe": [], **(read_json(path) if path.is_file() else {})}

    @property
    def versions(self) -> dict[str, Any]:
        path = self.path / "versions.json"
        return read_json(path) if path.is_file() else {}

    @property
    def seeds(self) -> list[int]:
        """List the seeds that have a sub-folder, in order."""
        names = (entry.name.removeprefix("seed-") for entry in self.path.glob("seed-*") if entry.is_dir())
        return sorted(int(name) for name in names if name.isdecimal())

    def choose_seed(self, seed: int | None) -> int:
        """Return the seed that is asked for, or the only one. Raises RunFolderError when there is a choice to make."""
        if seed in self.seeds or (seed is None and len(self.seeds) == 1):
            return self.seeds[0] if seed is None else seed
        raise RunFolderError(f"{self.path} has the seeds {self.seeds}; choose one with --seed")

    def seed_path(self, seed: int) -> Path:
        return self.path / f"seed-{seed}"

    def checkpoints_path(self, seed: int) -> Path:
        return self.seed_path(seed) / "checkpoints"

    def served_path(self, seed: int) -> Path:
        """Return the folder of the weights that rollout servers read; it is gone when the run has ended."""
        return self.seed_path(seed) / "served"

    def rejection_path(self, seed: int) -> Path:
        return self.seed_path(seed) / "rejection"

    @property
    def supervised_path(self) -> Path:
        return self.path / "supervised"

    def find_trained(self, seed: int, keep: str | None = None) -> Path | None:
        """Return the checkpoint that stands for the trained policy of a seed, None without any checkpoint.

        `keep` is the recipe's `run.keep`: `last` takes the newest, and `best` the one with the best held-out reward, of
        equal ones the later. None takes what the folder's own recipe says.
        """
        keep = keep or self.config.get("run", {}).get("keep", "last")
        saved = {int(path.name[5:]): path for path in list_checkpoints(self.checkpoints_path(seed))}
        evaluations = (record for record in self.read_metrics(seed) if record["stage"] == "eval")
        rewards = {record["step"]: record["reward"] for record in evaluations if "reward" in record}
        evaluated = saved.keys() & rewards.keys() if keep == "best" else set()
        step = max(evaluated or saved, key=lambda step: (rewards[step] if evaluated else 0.0, step), default=None)
        return None if step is None else saved[step]

    def list_unfinished(self) -> list[str]:
        """Say of each seed whose training is not at its last step, or whose rejection sampling has other steps."""
        told, steps = [], self.config.get("run", {}).get("steps", 0)
        for seed in self.seeds:
            path = self.find_trained(seed, "last")
            if (path or self.read_metrics(seed)) and int(path.name.removeprefix("step-") if path else 0) < steps:
                newest = path.name if path else "not there yet"
                told.append(f"seed {seed} has not finished training; its newest checkpoint is {newest}")
            log = self.rejection_path(seed) / "rollouts.jsonl"
            if log.is_file() and (sampled := log.read_bytes().count(b"\n")) != steps:
                told.append(f"seed {seed}: its rejection sampling has {sampled} of {steps} steps")
        return told

    @property
    def evaluation_path(self) -> Path:
        return self.path / "evaluation"

    @property
    def _config_path(self) -> Path:
        return self.path / "config.yaml"

    def record_sandbox(self, backend: str | None) -> None:
        """Add the isolation of this process's sandbox to versions.json, which lists every one that the run had."""
        seen = self.versions.get("sandbox", [])
        if backend is not None and backend not in seen:
            write_json(self.path / "versions.json", {**self.versions, "sandbox": [*seen, backend]})

    def check_inputs(self, found: Hashes, *, accept: bool = False) -> None:
        """Record what the run rests on, or compare it with what was recorded when the run began.

        A run from before there were hashes, of data or of code, records those of today.

        Raises:
            RunFolderError: something has changed, the run has results, and `accept` is not set.
        """
        path, recorded = self.path / INPUTS, self.inputs
        begun = _has_results(self.path)
        codeless = not any(name.startswith(CODE) for name in recorded["files"])
        compared = {name: entry for name, entry in found.items() if not (codeless and name.startswith(CODE))}
        changes = list_input_changes(recorded["files"], compared) if begun and recorded["files"] else []
        if changes and not accept:
            lines = "\n".join(f"  {line}" for line in changes)
            raise RunFolderError(
                f"{self.path}: what this run rests on has changed since it began:\n{lines}\nPut the files back; or go "
                "on with the new ones by --accept-changes, which inputs.json records (what is trained stays, such as a "
                "warm start); or choose another --out"
            )
        if begun and not recorded["files"]:
            logger.warning("%s began without hashes of its data and model; those of today are recorded", self.path)
        earlier = recorded["changes"] if begun else []
        write_json(path, {"files": found, "changes": [*earlier, *changes]})

    @property
    def inputs(self) -> dict[str, Any]:
        path = self.path / INPUTS
        return read_json(path) if path.is_file() else {"files": {}, "changes": []}

    def _record_versions(self) -> None:
        """Write the versions of the first process; add what another process resumes on, if that differs."""
        now, before = collect_versions(), self.versions
        if not before:
            write_json(self.path / "versions.json", now)
            return
        resumed = before.get("resumed_with", [])
        if now not in (
            {key: value for key, value in before.items() if key not in ("resumed_with", "sandbox")},
            *resumed,
        ):
            write_json(self.path / "versions.json", {**before, "resumed_with": [*resumed, now]})


def list_checkpoints(folder: Path) -> list[Path]:
    """List the complete checkpoints `step-NNNNNN` of a folder, oldest first; a user's copy beside them is none."""
    return sorted(path for path in folder.glob("step-*") if path.name[5:].isdigit())


def _lock(path: Path, wait_s: float = 0.0) -> AbstractContextManager[None]:
    told = f"{path}: another process is writing this run; wait for it, end it, or choose another --out"
    return hold_lock(path / LOCK, wait_s, RunFolderError(told))


def flatten(config: Mapping[str, Any], prefix: str = "", joint: str = ".") -> dict[str, Any]:
    """Turn nested mappings into joined keys: {"train": {"lr": 1}} -> {"train.lr": 1}."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}{joint}", joint)
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _list_changes(
    old_config: Mapping[str, Any], new_config: Mapping[str, Any], may_differ: Collection[str]
) -> list[str]:
    """Describe each key that differs, in one line."""
    old, new = flatten(old_config), flatten(new_config)
    absent = object()

    def show(flat: Mapping[str, Any], key: str) -> str:
        return repr(flat[key]) if key in flat else "absent"

    return [
        f"  {key}: {show(old, key)} in the folder, {show(new, key)} asked for"
        for key in sorted(old.keys() | new.keys())
        if old.get(key, absent) != new.get(key, absent)
        and not any(key == free or key.startswith(f"{free}.") for free in may_differ)
    ]


def _has_results(path: Path) -> bool:
    """Say whether the run has written more than what it begins with, published scores, servers' and empty logs."""
    files = (file for file in path.rglob("*") if file.is_file() and file.stat().st_size)
    names = (file.relative_to(path) for file in files)
    start = ("config.yaml", "versions.json", "published.json", INPUTS, SERVERS)
    return any(name.parts[0] not in start for name in names)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise RunFolderError(f"{path} is not valid YAML ({error}); choose another --out") from None
    if not isinstance(config, dict):
        raise RunFolderError(f"{path} must be a mapping of recipe keys; choose another --out")
    return drop_retired(config)


def _normalize(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe as YAML will give it back: tuples are lists, for example."""
    normalized: dict[str, Any] = yaml.safe_load(yaml.safe_dump(jsonable(config)))
    return normalized


def _write_config(path: Path, config: Mapping[str, Any]) -> None:
    write_text(path, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))


def _delete_run(path: Path) -> None:
    """Delete what a run writes and nothing else; config.yaml last, so that an interrupted deletion can be repeated."""
    for log in path.glob("evaluate-*.log"):
        log.unlink()
    names = (".warm_start.partial", "evaluation", SERVERS, "supervised", "warm_start")
    for folder in (*path.glob("seed-*"), *(path / name for name in names)):
        if folder.is_symlink():
            folder.unlink()  # what it leads to lies elsewhere, and stays
        elif folder.is_dir():
            shutil.rmtree(folder)
    report = "summary.json table.md report.html figure.svg view.html"
    for name in f"{CLOCK} {INPUTS} versions.json published.json {report} config.yaml".split():
        (path / name).unlink(missing_ok=True)
