"""Logs the finished samples of one cell, a JSON line each, in the `.jsonl` beside the cell's result.

A line holds all that the result needs: the trajectory as core/runs/trajectory.py describes it, and

    "variant", "data", "length", "seed", "repeat"     which sample it is, together with "task_id"
    "made_with": {...}                                the cell's fingerprint: samples of other conditions are refused
    "policy_tokens"                                   prompt and completion tokens of all calls
    "session", "elapsed", "cpu_elapsed"               seconds from the start of its session to its end

and what its benchmark adds, such as scores. So an evaluation that was killed at any moment continues with the samples
that are missing, and a later call may ask for more tasks or repeats. A line torn by a crash is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.harness.plan import EvalCell, EvaluationError, describe_changes
from core.rollout.runner import Failures
from core.runs.evaluation import EvalResult, file_name
from core.runs.files import JsonlLog, Record, hold_lock, read_jsonl
from core.runs.run_folder import RunFolder
from core.types import Task, Trajectory


class SampleLog:
    """Keeps the samples of one cell, for one process at a time. Its file is opened for writing by the first `append`.

    Raises:
        EvaluationError: another process works on this cell, or the samples were made under other conditions.
    """

    def __init__(self, folder: RunFolder, cell: EvalCell):
        self.cell = cell
        self.path = (folder.evaluation_path / cell.file).with_suffix(".jsonl")
        self._lock = ExitStack()
        try:
            self._lock.enter_context(hold_lock(self.path.with_name(f".{self.path.stem}.lock")))
        except BlockingIOError:
            raise EvaluationError(f"{self.path}: another process evaluates {cell}; wait for it, or end it") from None
        self._log: JsonlLog | None = None
        self.session = 1 + max((record["session"] for record in self._read()), default=0)

    def _read(self) -> Iterator[Record]:
        """Yield the samples one at a time. Raises EvaluationError for one that was made under other conditions."""
        try:
            for record in read_jsonl(self.path):
                if changes := describe_changes(record.get("made_with", {}), self.cell.fingerprint):
                    raise EvaluationError(
                        f"{self.path}: these samples were made otherwise: {changes}. Delete the file to sample again, "
                        "or choose another folder with --out."
                    )
                yield record
        except ValueError as error:
            raise EvaluationError(str(error)) from error

    def load_samples(self, tasks: Sequence[Task]) -> list[list[Record]]:
        """Return the finished samples of each task, repeat by repeat, without the texts of their prompts.

        Raises:
            EvaluationError: a sample was made under other conditions or from another text, or is there twice.
        """
        found: dict[str, dict[int, Record]] = {task.task_id: {} for task in tasks}
        texts = {task.task_id: (task.question, list(task.answers)) for task in tasks}
        for record in self._read():
            name, repeat = record["task_id"], record["repeat"]
            if name not in found or repeat >= (self.cell.repeats or 1):
                continue
            if (record["question"], record["answers"]) != texts[name]:
                raise EvaluationError(
                    f"{self.path}: task {name} had another text or other answers when it was sampled. Delete the file "
                    "to sample again, or choose another folder with --out."
                )
            if repeat in found[name]:
                raise EvaluationError(
                    f"{self.path}: sample {repeat} of task {name} is there twice; two processes may have written it. "
                    "Delete one of the two lines."
                )
            for turn in record.get("turns", ()):
                turn["prompt"] = ""  # nothing is scored by it, and all prompts may be larger than the memory
            found[name][repeat] = record
        return [[samples[repeat] for repeat in sorted(samples)] for samples in found.values()]

    def pending(self, tasks: Sequence[Task]) -> list[tuple[int, Task]]:
        """Return (repeat, task) of each sample that is missing, repeat by repeat."""
        finished = {(record["repeat"], record["task_id"]) for record in flat(self.load_samples(tasks))}
        wanted = ((repeat, task) for repeat in range(self.cell.repeats or 1) for task in tasks)
        return [(repeat, task) for repeat, task in wanted if (repeat, task.task_id) not in finished]

    def append(self, repeat: int, record: Mapping[str, Any]) -> None:
        """Write one finished sample."""
        cell = self.cell
        named = {"variant": cell.variant, "data": cell.data, "length": cell.length, "seed": cell.seed, "repeat": repeat}
        self._open().append({**named, "made_with": cell.fingerprint, "session": self.session, **record})

    def drop_failed(self) -> int:
        """Drop the failed samples, so that they are sampled again, and return their number."""
        return self._open().keep(lambda record: record["status"] != "failed") if self.path.is_file() else 0

    def sync(self) -> None:
        """Wait until all samples are on the disk: a result must not outlive them."""
        if self._log is not None:
            self._log.sync()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
        self._lock.close()

    def _open(self) -> JsonlLog:
        if self._log is None:
            self._log = JsonlLog(self.path)
        return self._log


def drop_failed_samples(folder: RunFolder, cells: Iterable[EvalCell]) -> None:
    """Drop the failed samples of the cells, so that they are sampled again."""
    for cell in cells:
        log = SampleLog(folder, cell)
        if dropped := log.drop_failed():
            print(f"{cell}: {dropped} failed samples are run again")
        log.close()


def read_samples(folder: RunFolder, result: EvalResult, repeats: int | None = None) -> list[Record]:
    """Return the samples behind a saved result of repeated samples, task by task; `repeats` takes fewer of them."""
    file = file_name(result.variant, result.data, result.length, result.seed)
    order = {task_id: place for place, task_id in enumerate(result.notes["task_ids"])}
    records = read_jsonl((folder.evaluation_path / file).with_suffix(".jsonl"))
    count = repeats or result.notes["repeats"]
    chosen = (record for record in records if record["task_id"] in order and record["repeat"] < count)
    return sorted(chosen, key=lambda record: (order[record["task_id"]], record["repeat"]))


def flat(samples: Iterable[Sequence[Record]]) -> list[Record]:
    return [record for of_task in samples for record in of_task]


def session_seconds(records: Iterable[Record], clock: str = "elapsed") -> float:
    """Return the seconds of all sessions together, each from its start to the end of its last finished sample."""
    last: dict[int, float] = {}
    for record in records:
        last[record["session"]] = max(last.get(record["session"], 0.0), record[clock])
    return sum(last.values())


def count_failures(records: Iterable[Record]) -> Failures:
    """Return the failed samples by kind."""
    failures = Failures()
    for record in records:
        if record["status"] == "failed":
            failures.add(Trajectory(record["task_id"], (), "failed", failure=record["failure"], log=record["log"]))
    return failures
