"""EvalCell: what one result of an evaluation follows from. Two results with equal conditions have equal scores."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from core.config import RecipeError
from core.data.files import DataError, read_records
from core.hub import CheckpointError
from core.policy.server_process import ServerError
from core.runs.evaluation import EvalResult, file_name
from core.runs.run_folder import RunFolder, RunFolderError, flatten
from core.types import Sampling, Task, derive_seed


class EvaluationError(RuntimeError):
    """An evaluation that cannot be run as asked; the message says why and what to do."""


LATER = {
    f"settings.{name}"
    for name in ("tokenizer", "dtype", "weights", "role_weights", "code", "code_of_benchmark", "problems")
}
"""Names the conditions that not every result tells: one of an earlier version does not, nor one of a server."""

SERVED = "served model of "
"""Begins the names of conditions that tell what the server of a role holds, if it says that."""

COMPARED = ("protocol", "published_as", "departures")
"""Names the notes by which a cell stands beside a published score."""

EXPECTED_ERRORS = (EvaluationError, ServerError, RecipeError, RunFolderError, CheckpointError, DataError, OSError)
"""A command that evaluates prints these as one line, without a traceback."""


@dataclass(frozen=True, kw_only=True)
class EvalCell:
    """Describes one result: one variant on the tasks of one data set, at one length, with one seed."""

    variant: str
    data: str
    length: int = 0
    """Holds 0 for data without lengths."""
    seed: int = 0
    n: int = 0
    """Counts the tasks."""
    model: str
    """Holds the name that the result records."""
    model_path: str
    """Names the folder or hub id that is opened."""
    sampling: Sampling
    concurrency: int
    """Limits the samples in flight."""
    deadline_s: float
    """Limits the seconds of one sample."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Holds what else the scores follow from: data, method, weights."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Holds facts that the scores do not follow from."""
    repeats: int | None = None
    """Counts the samples of each task; None takes one sample, whose seed names no repeat."""
    stream: str = "evaluation"
    """Enters the seed of each sample."""

    def __str__(self) -> str:
        return f"{self.variant} · {self.data}{f' {self.length}' if self.length else ''} · seed {self.seed}"

    @property
    def file(self) -> str:
        """Return the file of the result in the run folder's `evaluation/`."""
        return file_name(self.variant, self.data, self.length, self.seed)

    def sample_seed(self, task: Task, repeat: int) -> int:
        """Return the seed of one sample. It does not depend on the variant, so all variants are sampled alike."""
        parts = (self.seed, self.stream, task.task_id)
        return derive_seed(*parts) if self.repeats is None else derive_seed(*parts, repeat)

    @property
    def conditions(self) -> dict[str, Any]:
        """Return everything that the scores of a sample follow from, beside its task."""
        return {"model": self.model, "sampling": sampling_record(self.sampling), "settings": dict(self.settings)}

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Return the conditions in a few short values, for the record of its samples: each section becomes a digest."""
        sections = flatten({**self.conditions, "settings": {}}) | {f"settings.{k}": v for k, v in self.settings.items()}
        return {
            name: hash_json(value)[:12] if isinstance(value, dict | list) else value for name, value in sections.items()
        }


def sampling_record(sampling: Sampling) -> dict[str, float]:
    """Return the fields of `sampling` that results record."""
    return {name: value for name, value in asdict(sampling).items() if name in ("temperature", "top_p", "top_k")}


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return a text that names every key whose value differs; it is empty when none does."""
    sections = [{".".join(key.split(".")[:2]) for key in side} for side in (before, now)]
    one_sided = sections[0] ^ sections[1]
    untold = {name for name in one_sided if name in LATER or name.startswith(f"settings.{SERVED}")}
    differ = (key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    keys = sorted(key for key in differ if not any(f"{key}.".startswith(f"{name}.") for name in untold))
    only_code = all(key.startswith("settings.code") for key in keys)
    fix = " (of code alone: --accept-changes goes on)" if keys and only_code else ""
    return "; ".join(f"{key} was {before.get(key)!r}, is now {now.get(key)!r}" for key in keys) + fix


def is_saved(cell: EvalCell, folder: RunFolder) -> bool:
    """Return whether `folder` has a result of this cell with at least its number of tasks.

    What this call says of the comparison with published scores is noted on the result, which need not be made again.

    Raises:
        EvaluationError: the folder's result followed from other conditions, or its file is broken.
    """
    path = folder.evaluation_path / cell.file
    if not path.is_file():
        return False
    try:
        saved = EvalResult.load(path)
    except ValueError as error:
        raise EvaluationError(f"{error}. Delete the file to evaluate this cell again.") from error
    before = {"model": saved.model, "sampling": saved.sampling, "settings": saved.settings}
    if changes := describe_changes(flatten(before), flatten(cell.conditions)):
        raise EvaluationError(
            f"{path}: this cell was evaluated otherwise: {changes}. Delete the file, and the .jsonl.gz of its "
            "samples, to evaluate it again, or choose another folder with --out."
        )
    # A result of more tasks departs otherwise, and one of fewer is made again.
    told = [name for name in COMPARED if name in cell.notes and (name != "departures" or saved.n == cell.n)]
    notes = {**saved.notes, **{name: cell.notes[name] for name in told}}
    if notes != saved.notes:
        folder.save_evaluation(replace(saved, notes=notes))
    return saved.n >= cell.n


def tell_all_taken(source: object, found: int, asked: int | None) -> None:
    """Print that there are fewer tasks than were asked for, where that is so."""
    if asked is not None and found < asked:
        print(f"note: {source} has {found} tasks, which are all taken")


def file_fingerprint(path: Path) -> str:
    """Return name and digest of a file, a folder of texts, or a data set of the hub, as results record it."""
    files = [path] if path.is_file() else sorted(path.glob("*.txt"))
    contents = [file.read_bytes() for file in files] or [repr(record).encode() for _, record in read_records(path)]
    digest = hashlib.sha256(b"\0".join(contents)).hexdigest()
    return f"{path.name} sha256:{digest[:12]}"


def drop_ports(value: Any) -> Any:
    """Return a value without the ports of addresses on this machine, where a server has another one at each start."""
    if isinstance(value, str):
        return re.sub(r"^(https?://(?:127\.0\.0\.1|localhost)):\d+", r"\1", value)
    if isinstance(value, Mapping):
        return {name: drop_ports(item) for name, item in value.items()}
    return [drop_ports(item) for item in value] if isinstance(value, list | tuple) else value


def hash_json(value: Any) -> str:
    """Return the sha256 of a value that JSON can write, the same for every order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
