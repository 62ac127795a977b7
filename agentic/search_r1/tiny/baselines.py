"""Baselines of the `tiny` preset: what comes of searching by chance, and of not searching.

| variant | turns | answer |
|---|---|---|
| aimless-search | the searcher of the warm start plays all of them, without mistakes | any name or town that he read |
| no-search | none | the policy's, right after the question |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from agentic.search_r1.config import SearchR1Recipe
from agentic.search_r1.rollout import SearchR1
from agentic.search_r1.tiny.demonstrations import ANSWER, AimlessSearcher
from core.policy.base import Policy, Roles
from core.rollout.method import Method
from core.text.tokenizer import encode_text
from core.types import Completion, Sampling, Task, Trajectory


class AimlessSearch(SearchR1):
    """Lets the searcher of the warm start play the policy."""

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        searcher = AimlessSearcher(self.tokenizer, Random(f"{task.task_id}-{sampling.seed}"))
        return await super().rollout(task, Roles({"policy": searcher}), sampling)


class NoSearch(SearchR1):
    """Begins the policy's turn with an answer, so that it cannot search."""

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        opening = encode_text(self.tokenizer, ANSWER.partition(" ")[0])
        return await super().rollout(task, Roles({"policy": OpenedPolicy(roles["policy"], opening)}), sampling)


class OpenedPolicy:
    """A policy whose completions all begin with `opening`."""

    def __init__(self, policy: Policy, opening: tuple[int, ...]):
        self.policy = policy
        self.opening = opening

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        prompt = (*prompt_ids, *self.opening)
        rest = await self.policy.generate(prompt, sampling, session)
        ids = (*self.opening, *rest.token_ids)
        return Completion(ids, (0.0,) * len(self.opening) + tuple(rest.logprobs), rest.finish_reason)


BASELINES: Mapping[str, Callable[[SearchR1Recipe, Any], Method]] = {
    "aimless-search": AimlessSearch,
    "no-search": NoSearch,
}
