"""The completions that slime's rollouts got, and what our own engine makes of the same ones."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from core.backends.rollouts import NOTES
from core.backends.slime.samples import group_samples, read_task
from core.config import AlgorithmSection
from core.policy.base import Roles
from core.rollout.roles import open_roles
from core.rollout.rows import rows_from_groups
from core.rollout.runner import Runner
from core.types import Completion, Row, Sampling, Trajectory
from tests.contract.slime.case import Case


@dataclass
class Tape:
    """What each session (rollout) got for its calls, in order: completions, or the errors raised instead."""

    outcomes: dict[str, list[Completion | Exception]] = field(default_factory=dict)
    prompts: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)

    def forget(self, session: str) -> None:
        """What the attempts so far got; the next one begins again."""
        self.outcomes.pop(session, None)
        self.prompts.pop(session, None)

    def replay(self, session: str) -> Replay:
        return Replay(list(self.outcomes.get(session, ())), list(self.prompts.get(session, ())))


@dataclass
class Replay:
    """A policy that plays a session again, and insists on the same prompts."""

    outcomes: list[Completion | Exception]
    prompts: list[tuple[int, ...]]

    async def generate(self, prompt_ids: Any, sampling: Sampling, session: str | None = None) -> Completion:
        assert tuple(prompt_ids) == self.prompts.pop(0)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def again(tape: Tape, case: Case, samples: Sequence[Any], args: Namespace, tokenizer: Any) -> list[list[Trajectory]]:
    """The groups of our own runner, with the rewards of the rollouts themselves."""
    recipe = case.spec.recipe.model_validate(args.agentic_recipe)

    async def run_all() -> list[list[Trajectory]]:
        method = case.spec.build(recipe, tokenizer)
        async with open_roles(recipe, tokenizer) as frozen:

            async def run(sample: Any) -> Trajectory:
                policy = tape.replay(sample.session_id)
                roles = Roles({**frozen, "policy": policy})
                runner = Runner(method, roles, concurrency=1, deadline_s=60)
                trajectory = await runner.run_one(read_task(sample, args.prompt_data), Sampling())
                assert not policy.outcomes, (trajectory.failure, str(trajectory.log)[-700:])
                return trajectory

            groups = [[await run(sample) for sample in group] for group in group_samples(samples)]
        await method.close()
        return groups

    return asyncio.run(run_all())


def our_rows(
    groups: Sequence[Sequence[Trajectory]], case: Case, samples: Sequence[Any], args: Namespace
) -> tuple[list[Sequence[Trajectory]], list[Row]]:
    """The groups as they are trained, and their rows; log-probs as float32, which slime keeps."""
    recipe = case.spec.recipe.model_validate(args.agentic_recipe)
    if case.spec.regrade is not None:
        tasks = [read_task(group[0], args.prompt_data) for group in group_samples(samples)]
        groups = [case.spec.regrade(recipe, task, group) for task, group in zip(tasks, groups, strict=True)]
    algorithm = AlgorithmSection.model_validate(args.agentic_recipe["algorithm"])
    rows = rows_from_groups(groups, **algorithm.row_options())
    return list(groups), [replace(row, logprobs=as_float32(row.logprobs)) for row in rows]


def as_float32(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(torch.tensor(values, dtype=torch.float32).tolist())


def assert_ours(
    theirs: Sequence[Row], samples: Sequence[Any], tape: Tape, case: Case, args: Namespace, tokenizer: Any
) -> list[Sequence[Trajectory]]:
    """Rows, rewards, failures and metrics are those of our own engine; the groups as they are trained."""
    played = again(tape, case, samples, args, tokenizer)
    groups, ours = our_rows(played, case, samples, args)
    assert [row for row in theirs if row.trained_tokens] == ours
    assert {row.rollout_id for row in theirs} == set(range(sum(map(len, groups))))
    for sample, trajectory in zip(samples, (t for group in played for t in group), strict=True):
        notes = sample.metadata[NOTES]
        assert (notes["status"], notes["failure"]) == (trajectory.status, trajectory.failure)
        assert notes["metrics"] == dict(trajectory.metrics)
        assert sample.reward == (trajectory.reward or 0.0)
    return groups
