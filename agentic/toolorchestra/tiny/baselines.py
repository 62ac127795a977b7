"""Baselines of the `tiny` preset: orchestrators whose route does not come from a policy.

| variant | calls |
|---|---|
| most-expensive | answer-1, which knows and computes everything, for every question |
| search-own | search-1, then answer-2 |
| cheapest | search-1, then answer-3 |
| no-search | answer-3 alone |
| random | a search or none, then any expert, with equal chances |
| best | the best route for the question's kind and the user's preference (tasks.py): an upper bound |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain, repeat
from random import Random
from typing import Any

from agentic.toolorchestra.config import ToolOrchestraRecipe
from agentic.toolorchestra.rollout import ToolOrchestra
from agentic.toolorchestra.tiny.tasks import BEST, CHEAP, OWN, SEARCH, STRONG, Route
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import Method
from core.text.tokenizer import Tokenizer, encode_text
from core.types import Sampling, Task, Trajectory


class FixedRoute(ToolOrchestra):
    """An orchestrator that makes the calls of `route(task, the rollout's seed)` and asks no policy."""

    def __init__(self, route: Callable[[Task, int | None], Route], recipe: ToolOrchestraRecipe, tokenizer: Tokenizer):
        super().__init__(recipe, tokenizer)
        self.route = route
        self.tokenizer = tokenizer

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        route = self.route(task, sampling.seed)
        aliases = chain(route, repeat(route[-1]))  # an expert that gave no reply is asked again

        def respond(prompt_ids: tuple[int, ...], sampling: Sampling) -> tuple[int, ...]:
            alias = next(aliases)
            ids = encode_text(self.tokenizer, f" {alias.partition('-')[0]} {alias}")
            return (*ids, self.tokenizer.eos_token_id)

        return await super().rollout(task, Roles({"policy": ScriptedPolicy(respond)}), sampling)


def always(*route: str) -> Callable[[ToolOrchestraRecipe, Any], Method]:
    return partial(FixedRoute, lambda task, seed: route)


def random_route(task: Task, seed: int | None) -> Route:
    rng = Random(f"{task.task_id} {seed}")
    return (*((SEARCH,) * rng.randint(0, 1)), rng.choice((STRONG, OWN, CHEAP)))


def best_route(task: Task, seed: int | None) -> Route:
    return BEST[task.metadata["kind"]][task.metadata["preference"]]


BASELINES: Mapping[str, Callable[[ToolOrchestraRecipe, Any], Method]] = {
    "most-expensive": always(STRONG),
    "search-own": always(SEARCH, OWN),
    "cheapest": always(SEARCH, CHEAP),
    "no-search": always(CHEAP),
    "random": partial(FixedRoute, random_route),
    "best": partial(FixedRoute, best_route),
}
