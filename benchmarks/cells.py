"""One cell of an evaluation: one variant on some tasks with one seed. What every evaluator does with it but scoring."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from core.config import RecipeError
from core.data.files import DataError
from core.hub import CheckpointError
from core.policy.base import Roles
from core.policy.server_process import ServerError
from core.rollout.method import Method, derive_seed
from core.rollout.runner import Failures, Runner
from core.runs.evaluation import EvalResult, file_name
from core.runs.run_folder import RunFolder, RunFolderError, flatten
from core.types import Sampling, Task, Trajectory


class EvaluationError(RuntimeError):
    """An evaluation that cannot be had as asked for; the message says why and what to do."""


EXPECTED_ERRORS = (EvaluationError, ServerError, RecipeError, RunFolderError, CheckpointError, DataError)
"""What a command that evaluates ends with in one line, and without a traceback."""


@dataclass(frozen=True)
class Cell:
    """Names one result, and what it follows from. `length` is 0 for data without lengths.

    `model` is the name that is recorded; `notes` are facts that the result does not follow from.
    """

    variant: str
    data: str
    length: int
    seed: int
    n: int
    model: str
    sampling: Sampling
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.variant} · {self.data}{f' {self.length}' if self.length else ''} · seed {self.seed}"

    @property
    def file(self) -> str:
        return file_name(self.variant, self.data, self.length, self.seed)


@dataclass(frozen=True)
class Ran:
    """The trajectories of a cell's tasks, in order, and the time that all of them took, preparation left out.

    `cpu_seconds` are this process's own: on a busy machine they compare where wall-clock `seconds` do not.
    """

    trajectories: Sequence[Trajectory]
    seconds: float
    cpu_seconds: float


Ended = Callable[[Task, Trajectory], None]


async def run_cell(
    cell: Cell,
    method: Method,
    roles: Roles,
    tasks: Sequence[Task],
    *,
    concurrency: int,
    deadline_s: float,
    ended: Ended = lambda task, trajectory: None,
) -> Ran:
    """Run the `tasks`, one rollout each. Seeds follow from seed and task alone: all variants are sampled alike.

    Raises:
        EvaluationError: every single task failed, which says something about the set-up and nothing about the model.
    """
    runner = Runner(method, roles, concurrency=concurrency, deadline_s=deadline_s)

    async def one(task: Task) -> Trajectory:
        seed = derive_seed(cell.seed, "evaluation", task.task_id)
        trajectory = await runner.run_one(task, replace(cell.sampling, seed=seed))
        ended(task, trajectory)
        return trajectory

    began, cpu_began = time.perf_counter(), time.process_time()
    trajectories = await asyncio.gather(*map(one, tasks))
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    failures = failures_of(trajectories)
    if failures.counts.total() == len(tasks):
        raise EvaluationError(f"{cell}: every task failed: {failures.describe()}")
    return Ran(trajectories, seconds, cpu_seconds)


def result_of(
    cell: Cell,
    ran: Ran,
    scores: Mapping[str, list[float]],
    notes: Mapping[str, Any],
    document_tokens: Sequence[int] | None = None,
    **more: Any,
) -> EvalResult:
    """What all results have in common, and `more` fields of it. `document_tokens` is None for tasks without documents.

    Raises:
        ValueError: a score outside of [0, 1].
    """
    trajectories = ran.trajectories
    return EvalResult(
        variant=cell.variant,
        data=cell.data,
        length=cell.length,
        seed=cell.seed,
        n=len(trajectories),
        scores=scores,
        turns=[len(trajectory.turns) for trajectory in trajectories],
        document_tokens=[0] * len(trajectories) if document_tokens is None else list(document_tokens),
        seconds=ran.seconds,
        failures=dict(failures_of(trajectories).counts),
        model=cell.model,
        sampling=sampling_record(cell.sampling),
        predictions=[str(t.log["answer"]) if "answer" in t.log else None for t in trajectories],
        policy_tokens=[tokens_of(trajectory) for trajectory in trajectories],
        settings=cell.settings,
        notes={**cell.notes, **notes, "cpu_seconds": round(ran.cpu_seconds, 3)},
        **more,
    )


def failures_of(trajectories: Sequence[Trajectory]) -> Failures:
    failures = Failures()
    for trajectory in trajectories:
        if trajectory.status == "failed":
            failures.add(trajectory)
    return failures


def tokens_of(trajectory: Trajectory) -> int:
    """Prompt and completion tokens of all turns."""
    return sum(len(turn.prompt_ids) + len(turn.completion.token_ids) for turn in trajectory.turns)


def sampling_record(sampling: Sampling) -> dict[str, float]:
    return {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}


def model_name(folder: RunFolder, model: str) -> str:
    """The name that is recorded: inside the folder, relative to it."""
    path = Path(model)
    return str(path.relative_to(folder.path)) if path.is_relative_to(folder.path) else model


PARTS = 256
"""Of each file of weights, 4 KiB: a second for the largest models, and training moves every part."""


def weights_of(model: str | None, folder: RunFolder | None = None) -> str | None:
    """What tells the weights at a path from others that lie there later: a digest of parts of every file. None for
    checkpoints inside the run `folder`, which are never written anew, and for models that are not on this disk."""
    path = Path(model or "")
    if not model or not path.is_dir() or (folder is not None and path.is_relative_to(folder.path)):
        return None
    digest = hashlib.sha256()
    for file in sorted((*path.glob("*.safetensors"), *path.glob("config.json"))):
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as opened:
            for part in range(PARTS):
                opened.seek(size * part // PARTS)
                digest.update(opened.read(4096))
    return digest.hexdigest()[:12]


def described(path: Path) -> str:
    """A file, or a folder of texts, as it is recorded: by name and content."""
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    digest = hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
    return f"{path.name} sha256:{digest[:12]}"


def is_saved(cell: Cell, folder: RunFolder) -> bool:
    """Whether `folder` has the cell's result.

    Raises:
        EvaluationError: it has one that followed from other things, or a broken one.
    """
    path = folder.evaluation_path / cell.file
    if not path.is_file():
        return False
    try:
        saved = EvalResult.load(path)
    except ValueError as error:
        raise EvaluationError(f"{error}. Delete the file to evaluate this cell anew.") from error
    held = flatten({"n": saved.n, "model": saved.model, "sampling": saved.sampling, "settings": saved.settings})
    sampling = sampling_record(cell.sampling)
    enough = max(cell.n, saved.n)  # a cell of more tasks than asked for serves
    asked = flatten({"n": enough, "model": cell.model, "sampling": sampling, "settings": cell.settings})
    if held != asked:
        changed = sorted(key for key in held.keys() | asked.keys() if held.get(key) != asked.get(key))
        raise EvaluationError(
            f"{path}: this cell was evaluated otherwise: "
            + "; ".join(f"{key} was {held.get(key)!r}, is now {asked.get(key)!r}" for key in changed)
            + ". Delete the file to evaluate it anew, or choose another folder with --out."
        )
    return True
