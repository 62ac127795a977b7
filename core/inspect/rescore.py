"""Scores recorded rollouts again: as they are, with a function of the user's, or with the method's own code."""

from __future__ import annotations

import inspect
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from core.config import Recipe, import_function
from core.data.tasks import iter_tasks
from core.policy.base import Policy, PolicyError, Roles
from core.rollout.method import MethodSpec
from core.rollout.roles import open_roles
from core.rollout.rows import REFERENCE_KL
from core.rollout.runner import Runner
from core.runs.record import RecordedRollout
from core.text.tokenizer import load_tokenizer
from core.train import open_frozen_model
from core.types import Completion, Sampling, Task, Trajectory, derive_seed

METHOD = "method"
"""Stands for the method's own code where the name of a function could be."""

ScoreGroup = Callable[[Sequence[RecordedRollout]], Awaitable[Sequence[Trajectory]]]
"""Returns the rollouts of a recorded group with rewards, in the same order."""


class ReplayError(ValueError):
    """Says why a step cannot be replayed, and what would help."""


@asynccontextmanager
async def open_score(
    reward: str | None, spec: MethodSpec, recipe: Recipe, seed: int, start: Path, tasks: Path
) -> AsyncIterator[ScoreGroup]:
    """Yield what scores a group: nothing, the function `reward`, or the method's own code if `reward` is `method`.

    `start` is the folder of the tokenizer. The method takes its tasks from the file `tasks`, or else from the data of
    the recipe.

    Raises:
        RecipeError: there is no such function.
        ReplayError: while scoring, there is no such task.
    """
    if reward is None:
        yield _keep_rewards
        return
    if reward != METHOD:
        yield _score_with(reward)
        return
    tokenizer = load_tokenizer(start)
    method = spec.build(recipe, tokenizer)
    path = tasks if tasks.is_file() else Path(recipe.data.train)
    by_id = {task.task_id: task for task in iter_tasks(path, **spec.reading_options(recipe))}
    settings = recipe.rollout
    sampling = Sampling(temperature=settings.temperature, top_p=settings.top_p, top_k=settings.top_k)

    def find_task(rollout: RecordedRollout) -> Task:
        return check_task(by_id.get(rollout.task_id), rollout, path)

    try:
        async with open_roles(recipe, tokenizer, open_frozen_model) as opened:

            async def score(group: Sequence[RecordedRollout]) -> Sequence[Trajectory]:
                scored: list[Trajectory] = []
                # The seed of the first round of sampling; the record does not say which round a group is from.
                base = derive_seed(seed, "train", group[0].step - 1, 0)
                for member, rollout in enumerate(group):
                    old = rollout.trajectory()
                    if old.status == "failed":
                        scored.append(old)
                        continue
                    recorded: defaultdict[tuple[int, ...], deque[Completion]] = defaultdict(deque)
                    for turn in old.turns:
                        recorded[turn.prompt_ids].append(turn.completion)
                    roles = {role: RecordedPolicy(recorded, other) for role, other in opened.items()}
                    roles["policy"] = RecordedPolicy(recorded)
                    runner = Runner(method, Roles(roles), concurrency=1, deadline_s=settings.deadline_s)
                    seeded = replace(sampling, seed=derive_seed(base, rollout.group, member))
                    played = await runner.run_one(find_task(rollout), seeded)
                    kl = {name: value for name, value in old.metrics.items() if name == REFERENCE_KL}
                    scored.append(replace(played, metrics={**played.metrics, **kl}))
                regrade = spec.regrade(recipe)
                return scored if regrade is None else regrade(find_task(group[0]), scored)

            yield score
    finally:
        await method.close()


def check_task(task: Task | None, rollout: RecordedRollout, path: Path) -> Task:
    """Return the task that the file `path` has for a rollout. Raises ReplayError if it is not the one that was asked.

    Answers may differ: labels are corrected, and scored again.
    """
    if task is None:
        raise ReplayError(f"{path} has no task {rollout.task_id!r}; put the data of the run back")
    if task.question != rollout.question:
        raise ReplayError(
            f"{path}: task {task.task_id!r} asks {task.question!r:.200}, and asked {rollout.question!r:.200} in the "
            "run; put the data of the run back"
        )
    return task


async def _keep_rewards(group: Sequence[RecordedRollout]) -> Sequence[Trajectory]:
    return [rollout.trajectory() for rollout in group]


def _score_with(path: str) -> ScoreGroup:
    reward = import_function("--reward", path)

    async def score(group: Sequence[RecordedRollout]) -> Sequence[Trajectory]:
        scored = [rollout.trajectory() for rollout in group]
        for place, trajectory in enumerate(scored):
            if trajectory.status != "failed":
                value = reward(group[place])
                value = await value if inspect.isawaitable(value) else value
                scored[place] = replace(trajectory, reward=float(value))
        return scored

    return score


class RecordedPolicy(Policy):
    """Answers each call with the completion that a recorded rollout has for the same prompt ids, in their order.

    `other` answers what is not in the record.
    """

    def __init__(self, completions: Mapping[tuple[int, ...], deque[Completion]], other: Policy | None = None):
        self._completions = completions
        self._other = other

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        """Return the recorded completion. Raises PolicyError (`bad_request`) if there is none and no policy to ask."""
        waiting = self._completions.get(tuple(prompt_ids))
        if waiting:
            return waiting.popleft()
        if self._other is not None:
            return await self._other.generate(prompt_ids, sampling, session)
        raise PolicyError("bad_request", "the method sends a prompt that the record does not have")
