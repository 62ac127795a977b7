"""What a backend trains of a batch of rollouts, and what our own functions make of the same completions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

import pytest
import torch

from core.algorithms.aggregate import row_scales
from core.policy.base import Policy, Roles
from core.rollout.method import Method, MethodSpec
from core.rollout.roles import open_roles
from core.rollout.rows import rows_from_groups
from core.rollout.runner import Failures, Runner
from core.types import Completion, Row, Sampling, Task, Trajectory
from tests.contract.backends.case import Case


@dataclass
class Take:
    """What a rollout was about, what it asked, and what it got: completions, or the errors raised instead."""

    task: Task
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    outcomes: list[Completion | Exception] = field(default_factory=list)


Tape = dict[str, Take]
"""The last attempt of each rollout, by the rollout's name."""


def record(spec: MethodSpec, tape: Tape, name: Callable[[Any], str]) -> MethodSpec:
    """The same method, which keeps its rollouts; `name` gets the roles of one and tells its name."""
    return replace(spec, make=lambda recipe, tokenizer: Recorder(spec.make(recipe, tokenizer), tape, name))


class Recorder(Method):
    def __init__(self, method: Method, tape: Tape, name: Callable[[Any], str]):
        self.method, self.tape, self.name = method, tape, name
        self.needs, self.close = method.needs, method.close  # type: ignore[method-assign]

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        take = self.tape[self.name(roles)] = Take(task)
        policies = {role: roles[role] for role in roles} | {"policy": Recorded(roles["policy"], take)}
        return await self.method.rollout(task, Roles(policies), sampling)


@dataclass
class Recorded:
    policy: Policy
    take: Take

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        self.take.prompts.append(tuple(prompt_ids))
        try:
            completion = await self.policy.generate(prompt_ids, sampling, session)
        except Exception as error:
            self.take.outcomes.append(error)
            raise
        self.take.outcomes.append(completion)
        return completion


@dataclass
class Replay:
    """A policy that plays a rollout again, and insists on the same prompts."""

    prompts: list[tuple[int, ...]]
    outcomes: list[Completion | Exception]

    async def generate(self, prompt_ids: Any, sampling: Sampling, session: str | None = None) -> Completion:
        assert tuple(prompt_ids) == self.prompts.pop(0)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


Groups = Sequence[tuple[Task, Sequence[str]]]
"""Each group's task, and the names of its rollouts."""


def play_again(tape: Tape, groups: Groups, case: Case, recipe: Any, tokenizer: Any) -> list[list[Trajectory]]:
    """The groups of our own runner, with the rewards of the rollouts themselves."""

    async def run_all() -> list[list[Trajectory]]:
        method = case.spec.build(recipe, tokenizer)
        async with open_roles(recipe, tokenizer) as others:

            async def run(take: Take) -> Trajectory:
                policy = Replay(list(take.prompts), list(take.outcomes))
                runner = Runner(method, Roles({**others, "policy": policy}), concurrency=1, deadline_s=280)
                trajectory = await runner.run_one(take.task, Sampling())
                assert not policy.outcomes, (trajectory.failure, str(trajectory.log)[-700:])
                return trajectory

            # A task that the backend refuses to read has no take, and must fail without a call.
            played = [[await run(tape.get(name) or Take(task)) for name in names] for task, names in groups]
        await method.close()
        return played

    return asyncio.run(run_all())


class Told(NamedTuple):
    """What a backend tells of a rollout."""

    name: str
    status: str
    failure: str | None
    reward: float | None
    metrics: Mapping[str, float]


class Trained(NamedTuple):
    """A row that is trained, of the rollout number `rollout_id` of its batch, and its weight in its optimizer step."""

    row: Row
    scale: float


@dataclass(frozen=True)
class Batch:
    tasks: Sequence[Task]
    groups: Sequence[Sequence[Told]]
    steps: Sequence[Sequence[Trained]]
    failures: Mapping[str, float]
    """Counts those that the backend logs, by name."""
    tape: Tape
    compared: bool = False
    """Says that the rewards told are those that compare a group."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Maps names that failures have on this backend alone to those of the cases."""

    @property
    def names(self) -> Groups:
        return [(task, [told.name for told in group]) for task, group in zip(self.tasks, self.groups, strict=True)]

    @property
    def rows(self) -> list[Row]:
        """All rows, rollout by rollout."""
        return sorted((row for step in self.steps for row, _ in step), key=lambda row: row.rollout_id)


def make_trained(row: Row, scale: float = 0.0) -> Trained:
    """Write a row as any backend may: in float32, and beginning its response with the first trained token."""
    first = row.loss_mask.index(1)
    assert not any(row.logprobs[:first])
    mask, logprobs = row.loss_mask[first:], as_float32(row.logprobs[first:])
    return Trained(replace(row, loss_mask=mask, logprobs=logprobs, advantage=as_float32([row.advantage])[0]), scale)


def as_float32(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(torch.tensor(values, dtype=torch.float32).tolist())


def our_rows(groups: Sequence[Sequence[Trajectory]], recipe: Any) -> list[Row]:
    return [make_trained(row).row for row in rows_from_groups(groups, **recipe.algorithm.row_options())]


def assert_ours(batch: Batch, case: Case, values: dict[str, Any], tokenizer: Any) -> list[Sequence[Trajectory]]:
    """Rows, weights, rewards, failures and metrics are those of our own functions; the groups as they are trained."""
    recipe = case.spec.recipe.model_validate(values)
    algorithm = recipe.algorithm
    played = play_again(batch.tape, batch.names, case, recipe, tokenizer)
    groups: list[Sequence[Trajectory]] = list(played)
    if regrade := case.spec.regrade(recipe):
        groups = [regrade(task, group) for task, group in zip(batch.tasks, played, strict=True)]
    assert batch.rows == our_rows(groups, recipe)
    for step in batch.steps:
        scales = row_scales([row for row, _ in step], algorithm.loss_agg, algorithm.max_response_length or 1)
        assert [scale for _, scale in step] == pytest.approx(scales, rel=1e-6)
    parts = [{row.rollout_id for row, _ in step} for step in batch.steps]
    assert sum(map(len, parts)) == len(set(chain(*parts))), "a rollout is in two optimizer steps"
    for told, trajectory in zip(chain(*batch.groups), chain(*(groups if batch.compared else played)), strict=True):
        assert (told.status, told.failure) == (trajectory.status, trajectory.failure)
        assert told.metrics == dict(trajectory.metrics)
        assert isinstance(trajectory.log.get(case.spec.answer), str | None), "a user's reward reads a text"
        assert as_float32([told.reward or 0.0]) == as_float32([trajectory.reward or 0.0])
    assert batch.failures == Failures(chain(*played)).counts
    return groups
