"""The `tiny` preset: splits share nothing, the stated routes are the best ones, and demonstrations know nothing of
them."""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random

import pytest

from agentic.toolorchestra.rollout import SPEC
from agentic.toolorchestra.scripted_experts import SCOUT, count_tokens, fact_value, reply
from agentic.toolorchestra.world import (
    BEST,
    CHEAP,
    KINDS,
    MODEL_MAPPING,
    OWN,
    PREFERENCES,
    SEARCH,
    STRONG,
    WORLD,
    Route,
    draw_demonstration,
)
from core.rewards.boxed import find_boxed
from core.rewards.preference import Features, make_features, preference_rewards
from core.types import Task
from core.worlds import SPLITS

ROUTES: list[Route] = [
    (*((SEARCH,) * searches), expert) for searches, expert in product((0, 1, 2), (STRONG, OWN, CHEAP))
]
CONFIG = SPEC.load("tiny").toolorchestra
LATENCY = {name: model.latency_s or 0.0 for name, model in CONFIG.models.items()}


def outcome(task: Task, route: Route) -> Features:
    """What a rollout of this route gets, by the experts' replies to what the rollout would send them."""
    lines, cost, correct = "", 0.0, False
    for alias in route:
        model = MODEL_MAPPING[alias]
        message = f"{alias.partition('-')[0]}: {task.question}{lines}"
        answer = reply(model, message)
        price = task.metadata["tool_pricing"][model]
        cost += price["input_tokens_per_million"] * count_tokens(message)
        cost += price["output_tokens_per_million"] * count_tokens(answer)
        if model == SCOUT:
            fact = answer if " of " in answer and answer != message else "price of anchor"
            lines += f"\nsearch {SEARCH} = [1] {fact.rpartition(' ')[2]} The {fact} is {fact_value(fact)}."
        else:
            correct = find_boxed(answer) == task.answers[0]
    latency = sum(LATENCY[MODEL_MAPPING[alias]] for alias in route)
    return make_features(correct=correct, cost=cost, latency=latency, calls=Counter(route))


@pytest.mark.parametrize("split", SPLITS)
def test_the_stated_route_is_the_only_best_one_for_every_task(split: str) -> None:
    for task in WORLD.draw_tasks(split, 200):  # type: ignore[arg-type]
        rewards = preference_rewards([outcome(task, route) for route in ROUTES], task.metadata["pref_vec"])
        best = BEST[task.metadata["kind"]][task.metadata["preference"]]
        assert ROUTES[rewards.index(max(rewards))] == best, task
        assert sorted(rewards)[-2] < max(rewards), task


def test_demonstrations_show_no_route() -> None:
    """Where no tool is named, each is called as often, whatever the kind, the preference, and whether it searched."""
    rng = Random(0)
    calls = Counter[tuple[str, str, int, str]]()
    for _ in range(9000):
        turn = draw_demonstration(rng)
        kind, wanted = turn.thought.split()
        if wanted in PREFERENCES:
            calls[kind, wanted, len(turn.lines), turn.call.strip()] += 1
    cases = Counter[tuple[str, str, int]]()
    for (*case, _), count in calls.items():
        cases[tuple(case)] += count  # type: ignore[index]
    assert len(cases) == len(KINDS) * len(PREFERENCES) * 2
    for case, count in cases.items():
        shares = [calls[*case, call] / count for call in MODEL_MAPPING]
        assert all(abs(share - 1 / len(MODEL_MAPPING)) < 4 * (0.25 * 0.75 / count) ** 0.5 for share in shares), case
