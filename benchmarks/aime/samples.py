"""k samples of each problem by one variant: run, graded, and written one by one (benchmarks/plan.py)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

from benchmarks.aime.statistics import Sample
from benchmarks.cells import EvaluationError, failures_of
from benchmarks.plan import Plan, missing
from core.policy.base import Roles
from core.rewards.grade import MathGrader, integer
from core.rewards.math import strip_latex
from core.rollout.method import Method, derive_seed
from core.rollout.runner import Runner
from core.runs.files import Record
from core.runs.progress import Progress
from core.runs.run_folder import StepLog
from core.runs.trajectory import trajectory_record
from core.types import Task, Trajectory


async def sample(plan: Plan, variant: str, method: Method, roles: Roles, log: StepLog, tokenizer: Any) -> None:
    """Run what is missing and write it to `log`.

    Raises:
        EvaluationError: every single sample failed, which says something about the set-up and nothing about the model.
    """
    todo = missing(plan, variant, log)
    runner = Runner(method, roles, concurrency=plan.concurrency, deadline_s=plan.deadline_s)
    grader = MathGrader()
    done: list[Trajectory] = []

    async def one(repeat: int, task: Task) -> None:
        seed = derive_seed(plan.seed, "aime", task.task_id, repeat)
        began = time.perf_counter()
        trajectory = await runner.run_one(task, replace(plan.sampling, seed=seed))
        record = await _record(task, repeat, trajectory, grader, tokenizer)
        log.append({"variant": variant, "data": plan.data, **record, "seconds": time.perf_counter() - began})
        done.append(trajectory)
        progress.update(len(done))

    try:
        with Progress(len(todo), label=f"{variant} · {plan.data}", interval=15.0) as progress:
            await asyncio.gather(*(one(repeat, task) for repeat, task in todo))
    finally:
        await grader.close()
    failures = failures_of(done)
    if done and failures.counts.total() == len(done):
        raise EvaluationError(
            f"{variant} on {plan.data}: every sample failed: {failures.describe()}. "
            "Mend that, then run again with --retry-failed."
        )


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
    """The trajectory with our grade, whatever reward its method gave: all variants are graded alike."""
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
