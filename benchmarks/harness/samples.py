"""Records the samples of one cell as they end, in the `.jsonl.gz` beside the cell's result (core/runs/record.py).

The first line's `cell` has variant, data, length, seed, and the cell's fingerprint: samples of other conditions are
refused. Each line's `sample` has `repeat`, `session`, `elapsed` and `cpu_elapsed` (seconds from the start of its
session to its end), and under `graded` what its benchmark adds, such as scores. So an evaluation that was killed at any
moment continues with the samples that are missing, and a later call may ask for more tasks or repeats. A line torn by a
crash is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.plan import EvalCell, EvaluationError, describe_changes
from core.runs.evaluation import EvalResult, file_name
from core.runs.files import Record, hold_lock, jsonable
from core.runs.record import RecordedRollout, RolloutLog, read_rollouts
from core.runs.run_folder import RunFolder
from core.text.tokenizer import Tokenizer, token_bytes
from core.types import PARTIAL_METRICS, Status, Task


@dataclass(frozen=True, slots=True)
class Sample:
    """Holds what results need of a recorded sample. Its tokens stay on the disk: all may be larger than the memory."""

    task_id: str
    repeat: int
    status: Status
    failure: str | None
    reward: float | None
    turns: int
    sampled_tokens: int
    policy_tokens: int
    """Counts prompt and completion tokens of all calls."""
    metrics: Mapping[str, Any]
    log: Mapping[str, Any]
    graded: Mapping[str, Any]
    """Holds what its benchmark adds, such as scores."""
    session: int
    elapsed: float
    cpu_elapsed: float
    weights: Sequence[tuple[str, str]] = ()
    """Pairs each kind of call with the versions of the weights that sampled it, as its server calls them."""

    @classmethod
    def read(cls, rollout: RecordedRollout) -> Sample:
        sampled = sum(len(turn.sampled) for turn in rollout.turns)
        return cls(
            task_id=rollout.task_id,
            status=rollout.status,
            failure=rollout.failure,
            reward=rollout.reward,
            turns=len(rollout.turns),
            sampled_tokens=sampled,
            policy_tokens=sampled + sum(map(len, rollout.prompts)),
            metrics=rollout.metrics,
            log=rollout.log,
            weights=tuple(dict.fromkeys((turn.role, version) for turn in rollout.turns for version in turn.versions)),
            **rollout.sample,
        )

    @property
    def failed(self) -> bool:
        return self.status == "failed"


Samples = Sequence[Sequence[Sample]]
"""Holds the samples of each task, repeat by repeat."""


class SampleLog:
    """Keeps the samples of one cell, for one process at a time. Its file is opened for writing by the first `append`.

    Raises:
        EvaluationError: another process works on this cell.
    """

    def __init__(self, folder: RunFolder, cell: EvalCell):
        self.cell = cell
        self.path = samples_path(folder, cell.file)
        self.session = 1
        self._lock = ExitStack()
        told = EvaluationError(f"{self.path}: another process evaluates {cell}; wait for it, or end it")
        self._lock.enter_context(hold_lock(self.path.with_name(f".{Path(cell.file).stem}.lock"), held=told))
        self._log: RolloutLog | None = None

    def _read(self) -> Iterator[RecordedRollout]:
        """Yield the samples one at a time. Raises EvaluationError for those that were made under other conditions."""
        try:
            for rollout in read_rollouts(self.path):
                if changes := describe_changes(rollout.cell.get("made_with", {}), self.cell.fingerprint):
                    raise EvaluationError(
                        f"{self.path}: these samples were made otherwise: {changes}. Delete the file to sample again, "
                        "or choose another folder with --out."
                    )
                yield rollout
        except ValueError as error:
            raise EvaluationError(str(error)) from error

    def load_samples(self, tasks: Sequence[Task]) -> list[list[Sample]]:
        """Return the finished samples of each task, repeat by repeat.

        Raises:
            EvaluationError: a sample was made under other conditions or from another text, or is there twice.
        """
        found: dict[str, dict[int, Sample]] = {task.task_id: {} for task in tasks}
        texts = {task.task_id: (task.question, list(task.answers)) for task in tasks}
        for rollout in self._read():
            name, repeat = rollout.task_id, rollout.sample["repeat"]
            self.session = max(self.session, rollout.sample["session"] + 1)
            if name not in found or repeat >= (self.cell.repeats or 1):
                continue
            if (rollout.question, rollout.answers) != texts[name]:
                raise EvaluationError(
                    f"{self.path}: task {name} had another text or other answers when it was sampled. Delete the file "
                    "to sample again, or choose another folder with --out."
                )
            if repeat in found[name]:
                raise EvaluationError(
                    f"{self.path}: sample {repeat} of task {name} is there twice; two processes may have written it. "
                    "Delete one of the two lines."
                )
            found[name][repeat] = Sample.read(rollout)
        return [[samples[repeat] for repeat in sorted(samples)] for samples in found.values()]

    def list_pending(self, tasks: Sequence[Task], samples: Samples) -> list[tuple[int, Task]]:
        """Return (repeat, task) of each sample that is missing, repeat by repeat."""
        finished = {(sample.repeat, sample.task_id) for sample in flat(samples)}
        wanted = ((repeat, task) for repeat in range(self.cell.repeats or 1) for task in tasks)
        return [(repeat, task) for repeat, task in wanted if (repeat, task.task_id) not in finished]

    def append(self, record: Record, tokenizer: Tokenizer | None, **sample: Any) -> None:
        """Write one finished sample: its line of the record, and the fields of its `sample`."""
        if self._log is None:
            self._log = self._open(tokenizer)
        self._log.append([{**record, "sample": jsonable({"session": self.session, **sample})}])

    def drop_failed(self) -> int:
        """Drop the failed samples, so that they are sampled again, and return their number."""
        if not any(rollout.status == "failed" for rollout in self._read()):
            return 0
        return (self._log or self._open(None)).keep(lambda record: record["status"] != "failed")

    def sync(self) -> None:
        """Wait until all samples are on the disk: a result must not outlive them."""
        if self._log is not None:
            self._log.sync()

    def close(self) -> None:
        self._lock.close()

    def _open(self, tokenizer: Tokenizer | None) -> RolloutLog:
        """Open the file for writing. A variant without a model has no tokenizer, and no tokens."""
        cell = self.cell
        named = {"variant": cell.variant, "data": cell.data, "length": cell.length, "seed": cell.seed}
        head = {"cell": {**named, "made_with": jsonable(cell.fingerprint)}}
        return RolloutLog(self.path, partial(token_bytes, tokenizer) if tokenizer else lambda ids: [], head)


def samples_path(folder: RunFolder, file: str) -> Path:
    """Return the record of the samples behind a result, which has the name `file`."""
    return (folder.evaluation_path / file).with_suffix(".jsonl.gz")


def drop_failed_samples(folder: RunFolder, cells: Iterable[EvalCell]) -> None:
    """Drop the failed samples of the cells and the results that count them, so that they are sampled again."""
    for cell in cells:
        log = SampleLog(folder, cell)
        if dropped := log.drop_failed():
            (folder.evaluation_path / cell.file).unlink(missing_ok=True)
            print(f"{cell}: {dropped} failed samples are run again")
        log.close()


def read_samples(folder: RunFolder, result: EvalResult, repeats: int | None = None) -> list[list[Sample]]:
    """Return the samples behind a saved result of repeated samples, task by task; `repeats` takes fewer of them."""
    path = samples_path(folder, file_name(result.variant, result.data, result.length, result.seed))
    by_task: dict[str, list[Sample]] = {task_id: [] for task_id in result.notes["task_ids"]}
    count = repeats or result.notes["repeats"]
    for sample in map(Sample.read, read_rollouts(path)):
        if sample.task_id in by_task and sample.repeat < count:
            by_task[sample.task_id].append(sample)
    samples = [sorted(of_task, key=lambda sample: sample.repeat) for of_task in by_task.values()]
    if any([sample.repeat for sample in of_task] != list(range(count)) for of_task in samples):
        raise EvaluationError(
            f"{path}: does not hold samples 0 to {count - 1} of each task once. Fix: delete it and the result beside "
            "it, and evaluate again"
        )
    return samples


def flat(samples: Samples) -> list[Sample]:
    return [sample for of_task in samples for sample in of_task]


def describe_weights(samples: Samples) -> str | None:
    """Say which calls were sampled by more than one version of weights, with the samples of each; None without any.

    A server that takes new weights in the midst of an evaluation, or is another one after a restart, says so.
    """
    counts = Counter(pair for sample in flat(samples) for pair in sample.weights)
    found: dict[str, list[str]] = {}
    for (role, version), count in sorted(counts.items()):
        found.setdefault(role, []).append(f"{version} ({count})")
    mixed = [f"{role}: {', '.join(told)}" for role, told in found.items() if len(told) > 1]
    return f"samples are of more than one version of weights: {'; '.join(mixed)}" if mixed else None


def measure_columns(samples: Samples) -> dict[str, list[float | None]]:
    """Return a column for each metric of finished samples: 0 where one has none, as in training; None if failed.

    One of PARTIAL_METRICS is None there, too.
    """
    every = flat(samples)
    names = dict.fromkeys(name for sample in every if not sample.failed for name in sample.metrics)
    absent = {name: None if name.startswith(PARTIAL_METRICS) else 0.0 for name in names}
    return {name: [None if s.failed else _number(s.metrics.get(name, absent[name])) for s in every] for name in names}


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def session_seconds(samples: Iterable[Sample], cpu: bool = False) -> float:
    """Return the seconds of all sessions together, each from its start to the end of its last finished sample."""
    last: dict[int, float] = {}
    for sample in samples:
        seconds = sample.cpu_elapsed if cpu else sample.elapsed
        last[sample.session] = max(last.get(sample.session, 0.0), seconds)
    return sum(last.values())
