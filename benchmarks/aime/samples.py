"""k samples of each problem by one arm: run, graded, and written one by one, so that a killed run loses nothing.

Samples live in the run folder's seed-N/trajectories.jsonl, a line each, beside those of other arms and data sets. What
is there is not run again; a line torn by a crash is dropped and its sample is run anew. Seeds follow from problem and
repeat alone, so all arms are sampled alike and a larger k goes on where a smaller one ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.aime.statistics import Sample
from benchmarks.cells import EvaluationError, failures_of
from core.policy.base import Roles
from core.report.console import Progress
from core.report.files import Record
from core.report.run_folder import StepLog
from core.report.trajectory import trajectory_record
from core.rewards.grade import MathGrader, integer
from core.rewards.math import strip_latex
from core.rollout.method import Method, derive_seed
from core.rollout.runner import Runner
from core.types import Sampling, Task, Trajectory


@dataclass(frozen=True)
class Plan:
    """What is sampled and how, the same for every arm. `data` names the problems, `k` is the samples of each."""

    data: str
    tasks: Sequence[Task]
    k: int
    sampling: Sampling
    seed: int
    concurrency: int
    deadline_s: float


def held(plan: Plan, arm: str, log: StepLog) -> list[Record]:
    """The records of the plan's samples that are there already.

    Raises:
        EvaluationError: a problem of that id had another text.
    """
    questions = {task.task_id: task.question for task in plan.tasks}
    records = [
        record
        for record in log.records()
        if (record.get("arm"), record.get("data")) == (arm, plan.data)
        and record["step"] < plan.k
        and record["task_id"] in questions
    ]
    for record in records:
        if record["question"] != questions[record["task_id"]]:
            raise EvaluationError(
                f"{log.path}: problem {record['task_id']} of {plan.data} had another text when it was sampled. "
                "Choose another folder with --out."
            )
    return records


def missing(plan: Plan, arm: str, log: StepLog) -> list[tuple[int, Task]]:
    """(repeat, problem) of each sample that is still to be had, repeat by repeat."""
    there = {(record["step"], record["task_id"]) for record in held(plan, arm, log)}
    return [(repeat, task) for repeat in range(plan.k) for task in plan.tasks if (repeat, task.task_id) not in there]


async def sample(plan: Plan, arm: str, method: Method, roles: Roles, log: StepLog, tokenizer: Any) -> None:
    """Run what is missing and write it to `log`.

    Raises:
        EvaluationError: every single sample failed, which says something about the set-up and nothing about the model.
    """
    todo = missing(plan, arm, log)
    runner = Runner(method, roles, concurrency=plan.concurrency, deadline_s=plan.deadline_s)
    grader = MathGrader()
    done: list[Trajectory] = []

    async def one(repeat: int, task: Task) -> None:
        seed = derive_seed(plan.seed, "aime", task.task_id, repeat)
        began = time.perf_counter()
        trajectory = await runner.run_one(task, replace(plan.sampling, seed=seed))
        record = await _record(task, repeat, trajectory, grader, tokenizer)
        log.append({"arm": arm, "data": plan.data, **record, "seconds": time.perf_counter() - began})
        done.append(trajectory)
        progress.update(len(done))

    try:
        with Progress(len(todo), label=f"{arm} · {plan.data}", interval=15.0) as progress:
            await asyncio.gather(*(one(repeat, task) for repeat, task in todo))
    finally:
        await grader.close()
    failures = failures_of(done)
    if done and failures.counts.total() == len(done):
        raise EvaluationError(
            f"{arm} on {plan.data}: every sample failed: {failures.describe()}. "
            "Mend that, then run again with --retry-failed."
        )


def drop_failed(log: StepLog) -> int:
    """Forget failed samples, so that they are run anew. Returns how many."""
    return log.keep(lambda record: record["status"] != "failed")


def read_sample(record: Record) -> Sample:
    """What the statistics need of a record."""
    turns, metrics = record["turns"], record["metrics"]
    return Sample(
        task_id=record["task_id"],
        repeat=record["step"],
        correct=record["reward"] == 1.0,
        answer=record["answer"],
        turns=len(turns),
        tokens=sum(turn["tokens"] for turn in turns),
        truncated=record["status"] == "truncated",
        parse_errors=metrics.get("parse_errors", 0) + metrics.get("command_errors", 0),
        tool_errors=metrics.get("tool_errors", 0),
        failure=record["failure"],
    )


async def _record(task: Task, repeat: int, trajectory: Trajectory, grader: MathGrader, tokenizer: Any) -> Record:
    """The trajectory with our grade, whatever reward its method gave: all arms are graded alike."""
    failed = trajectory.status == "failed"
    text = "" if failed else str(trajectory.log["answer"])
    grade = await grader.grade(task.question, text, task.answers)
    graded = replace(trajectory, reward=float(grade.correct))
    return {
        **trajectory_record("eval", repeat, task, graded, tokenizer),
        "answer": None if grade.parsed is None else integer(grade.parsed) or strip_latex(grade.parsed),
        "graded_by": grade.by,
        "final": text,
        "metrics": dict(trajectory.metrics),
        "failure": trajectory.failure,
        "error": trajectory.log.get("error"),
    }
