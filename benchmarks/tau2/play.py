"""Conversations of one variant on one domain: run, and written one by one, so that a killed run loses nothing."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

from benchmarks.cells import EvaluationError, failures_of, tokens_of
from benchmarks.plan import Plan, missing
from core.policy.base import Roles
from core.rollout.method import Method, derive_seed
from core.rollout.runner import Runner
from core.runs.files import Record
from core.runs.progress import Progress
from core.runs.run_folder import StepLog
from core.runs.trajectory import trajectory_record
from core.types import Task, Trajectory


async def play(plan: Plan, variant: str, method: Method, roles: Roles, log: StepLog, tokenizer: Any) -> None:
    """Play what is missing of one domain and write it to `log`.

    Raises:
        EvaluationError: every single conversation failed, which says something about the set-up alone.
    """
    todo = missing(plan, variant, log)
    done: list[Trajectory] = []
    runner = Runner(method, roles, concurrency=plan.concurrency, deadline_s=plan.deadline_s)

    async def one(trial: int, task: Task) -> None:
        seed = derive_seed(plan.seed, "tau2", task.task_id, trial)
        began = time.perf_counter()
        trajectory = await runner.run_one(task, replace(plan.sampling, seed=seed))
        simulation = trajectory.log.get("simulation")
        rest = {name: value for name, value in trajectory.log.items() if name != "simulation"}
        turns = tuple(replace(turn, prompt_ids=()) for turn in trajectory.turns)  # they repeat the conversation
        shown = replace(trajectory, log=rest, turns=turns)
        record: Record = {
            **trajectory_record("eval", trial, task, shown, tokenizer),
            "variant": variant,
            "data": plan.data,
            "tau2_id": task.metadata["tau2_id"],
            "score": (simulation or {}).get("reward_info", {}).get("reward"),
            "simulation": simulation,
            "policy_tokens": tokens_of(trajectory),
            "seconds": time.perf_counter() - began,
        }
        log.append(record)
        done.append(trajectory)
        progress.update(len(done))

    with Progress(len(todo), label=f"{variant} · {plan.data}", interval=15.0) as progress:
        await asyncio.gather(*(one(trial, task) for trial, task in todo))
    failures = failures_of(done)
    if done and failures.counts.total() == len(done):
        raise EvaluationError(
            f"{variant} on {plan.data}: every conversation failed: {failures.describe()}. "
            "Mend that, then run again with --retry-failed."
        )
