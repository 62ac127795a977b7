"""k samples of each task by each variant: what is there already, and what is missing, so that a killed run loses nothing.

Samples live in the run folder's seed-N/trajectories.jsonl, a line each, beside those of other variants and data sets. What
is there is not run again; a line torn by a crash is dropped and its sample is run anew. Seeds follow from task and
repeat alone, so all variants are sampled alike and a larger k goes on where a smaller one ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from benchmarks.cells import EvaluationError
from core.runs.files import Record
from core.runs.run_folder import StepLog
from core.types import Sampling, Task


@dataclass(frozen=True)
class Plan:
    """What is sampled and how, the same for every variant. `data` names the tasks, `k` is the samples of each."""

    data: str
    tasks: Sequence[Task]
    k: int
    sampling: Sampling
    seed: int
    concurrency: int
    deadline_s: float


def held(plan: Plan, variant: str, log: StepLog) -> list[Record]:
    """The records of the plan's samples that are there already.

    Raises:
        EvaluationError: a task of that id had another text or other answers.
    """
    tasks = {task.task_id: (task.question, list(task.answers)) for task in plan.tasks}
    records = [
        record
        for record in log.records()
        if (record.get("variant"), record.get("data")) == (variant, plan.data)
        and record["step"] < plan.k
        and record["task_id"] in tasks
    ]
    for record in records:
        if (record["question"], record["answers"]) != tasks[record["task_id"]]:
            raise EvaluationError(
                f"{log.path}: task {record['task_id']} of {plan.data} had another text or other answers when it was "
                "sampled. Choose another folder with --out."
            )
    return records


def missing(plan: Plan, variant: str, log: StepLog) -> list[tuple[int, Task]]:
    """(repeat, task) of each sample that is still to be had, repeat by repeat."""
    there = {(record["step"], record["task_id"]) for record in held(plan, variant, log)}
    return [(repeat, task) for repeat in range(plan.k) for task in plan.tasks if (repeat, task.task_id) not in there]


def drop_failed(log: StepLog, variants: Collection[str], data: Collection[str]) -> int:
    """Forget failed samples of these variants on these data, so that they are run anew. Returns how many."""
    return log.keep(
        lambda record: record["status"] != "failed" or record["variant"] not in variants or record["data"] not in data
    )
