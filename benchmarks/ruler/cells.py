"""One cell of an evaluation: one arm on the tasks of one length with one seed, run and scored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.ruler.arms import Reader
from benchmarks.ruler.score import score
from core.policy.base import Policy, Roles
from core.report.console import Progress
from core.report.evaluation import EvalResult
from core.rollout.method import derive_seed
from core.rollout.runner import Failures, Runner
from core.types import Completion, Sampling, Task, Trajectory


class EvaluationError(RuntimeError):
    """An evaluation that cannot be had as asked for; the message says why and what to do."""


@dataclass(frozen=True)
class Cell:
    """Names one result, and what it follows from. `notes` are facts that it does not follow from."""

    arm: str
    data: str
    length: int
    seed: int
    n: int
    model: str
    sampling: Sampling
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.arm} · {self.data} {self.length} · seed {self.seed}"


@dataclass(frozen=True)
class Ran:
    """The trajectories of a cell's tasks, in order, and the time that all of them took, preparation left out.

    `cpu_seconds` are this process's own: on a busy machine they compare where wall-clock `seconds` do not.
    """

    trajectories: Sequence[Trajectory]
    seconds: float
    cpu_seconds: float


async def run_cell(
    cell: Cell, reader: Reader, policy: Policy, tasks: Sequence[Task], *, concurrency: int, deadline_s: float
) -> Ran:
    """Run the prepared `tasks`.

    Raises:
        EvaluationError: every single task failed, which says something about the set-up and nothing about the model.
    """
    with Progress(sum(map(reader.calls, tasks)), label=str(cell), interval=15.0) as progress:
        watched = _Watched(policy, progress.update)
        runner = Runner(reader, Roles({"policy": watched}), concurrency=concurrency, deadline_s=deadline_s)
        began, cpu_began = time.perf_counter(), time.process_time()
        trajectories = await asyncio.gather(
            *(
                runner.run_one(task, replace(cell.sampling, seed=derive_seed(cell.seed, "evaluation", task.task_id)))
                for task in tasks
            )
        )
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    failures = failures_of(trajectories)
    if failures.counts.total() == len(tasks):
        raise EvaluationError(f"{cell}: every task failed: {failures.describe()}")
    return Ran(trajectories, seconds, cpu_seconds)


def failures_of(trajectories: Sequence[Trajectory]) -> Failures:
    failures = Failures()
    for trajectory in trajectories:
        if trajectory.status == "failed":
            failures.add(trajectory)
    return failures


def cell_result(
    cell: Cell, reader: Reader, tasks: Sequence[Task], document_tokens: Sequence[int], ran: Ran
) -> EvalResult:
    """Scores of every task, failed ones among them with 0."""
    trajectories = ran.trajectories
    scored = [_score(reader, task, trajectory) for task, trajectory in zip(tasks, trajectories, strict=True)]
    metrics = [name for name in scored[0] if all(name in scores for scores in scored)]
    cut = sum(trajectory.metrics.get("document_cut", 0.0) for trajectory in trajectories)
    return EvalResult(
        arm=cell.arm,
        data=cell.data,
        length=cell.length,
        seed=cell.seed,
        n=len(tasks),
        scores={"official" if name == "score" else name: [scores[name] for scores in scored] for name in metrics},
        turns=[len(trajectory.turns) for trajectory in trajectories],
        document_tokens=list(document_tokens),
        seconds=ran.seconds,
        failures=dict(failures_of(trajectories).counts),
        model=cell.model,
        sampling=sampling_record(cell.sampling),
        predictions=[None if t.status == "failed" else str(t.log["answer"]) for t in trajectories],
        policy_tokens=[_tokens(trajectory) for trajectory in trajectories],
        settings=cell.settings,
        notes={**cell.notes, "documents_cut": int(cut), "cpu_seconds": round(ran.cpu_seconds, 3)},
    )


def sampling_record(sampling: Sampling) -> dict[str, float]:
    return {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}


def _score(reader: Reader, task: Task, trajectory: Trajectory) -> dict[str, float]:
    if trajectory.status == "failed":
        return score(task, None)
    answer = str(trajectory.log["answer"])
    return score(task, answer, reader.answer_format(answer))


def _tokens(trajectory: Trajectory) -> int:
    return sum(len(turn.prompt_ids) + len(turn.completion.token_ids) for turn in trajectory.turns)


class _Watched:
    """A policy that tells the number of calls done."""

    def __init__(self, policy: Policy, tell: Callable[[int], None]):
        self._policy, self._tell, self._done = policy, tell, 0

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        completion = await self._policy.generate(prompt_ids, sampling, session)
        self._done += 1
        self._tell(self._done)
        return completion
