"""A cell of RULER: the variant's reader on documents of one length, run and scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.cells import Cell, Ran, result_of, run_cell
from benchmarks.ruler.score import score
from benchmarks.ruler.variants import Reader
from core.policy.base import Policy, Roles
from core.runs.evaluation import EvalResult
from core.runs.progress import Progress
from core.types import Completion, Sampling, Task, Trajectory


async def run_reader(
    cell: Cell, reader: Reader, policy: Policy, tasks: Sequence[Task], *, concurrency: int, deadline_s: float
) -> Ran:
    """Run the prepared `tasks`; errors as `run_cell`."""
    with Progress(sum(map(reader.calls, tasks)), label=str(cell), interval=15.0) as progress:
        roles = Roles({"policy": _Watched(policy, progress.update)})
        return await run_cell(cell, reader, roles, tasks, concurrency=concurrency, deadline_s=deadline_s)


def cell_result(
    cell: Cell, reader: Reader, tasks: Sequence[Task], document_tokens: Sequence[int], ran: Ran
) -> EvalResult:
    """Scores of every task, failed ones among them with 0."""
    trajectories = ran.trajectories
    scored = [_score(reader, task, trajectory) for task, trajectory in zip(tasks, trajectories, strict=True)]
    metrics = [name for name in scored[0] if all(name in scores for scores in scored)]
    cut = sum(trajectory.metrics.get("document_cut", 0.0) for trajectory in trajectories)
    named = {"official" if name == "score" else name: [scores[name] for scores in scored] for name in metrics}
    notes = {"documents_cut": int(cut), "task_ids": [question_id(task) for task in tasks]}
    return result_of(cell, ran, named, notes, document_tokens)


def question_id(task: Task) -> str:
    """The same wherever the same question is asked: samples of questions from a file draw other distractors for each
    seed, and are still the same questions."""
    known = task.metadata
    return str(known.get("source_id") or known["index"]) if {"num_docs", "index"} <= known.keys() else task.task_id


def _score(reader: Reader, task: Task, trajectory: Trajectory) -> dict[str, float]:
    if trajectory.status == "failed":
        return score(task, None)
    answer = str(trajectory.log["answer"])
    return score(task, answer, reader.answer_format(answer))


class _Watched:
    """A policy that tells the number of calls done."""

    def __init__(self, policy: Policy, tell: Callable[[int], None]):
        self._policy, self._tell, self._done = policy, tell, 0

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        completion = await self._policy.generate(prompt_ids, sampling, session)
        self._done += 1
        self._tell(self._done)
        return completion
