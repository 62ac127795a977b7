"""The `tiny` preset: splits share nothing, the stated routes are the best ones, and demonstrations know nothing of
them."""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random
from typing import Any

import pytest

from agentic.toolorchestra.experts import Experts, ModelPool
from agentic.toolorchestra.formats import FORMATS
from agentic.toolorchestra.prompts import tool_schemas
from agentic.toolorchestra.reward import Features, make_features, preference_rewards
from agentic.toolorchestra.rollout import SPEC
from agentic.toolorchestra.scripted_experts import SCOUT, THINGS, count_tokens, fact_value, reply
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
    assign_split,
    compare_variants,
    draw_demonstration,
    make_up_search,
    with_other_wish,
)
from core.policy.base import Roles
from core.rewards.boxed import find_boxed
from core.runs.evaluation import EvalResult
from core.text.tool_calls import CallError
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


def test_only_the_most_expensive_expert_is_always_right() -> None:
    drawn = WORLD.draw_tasks("test", 200)
    routes = [route for route in ROUTES if route.count(SEARCH) < 2]
    share = {route: sum(outcome(task, route)["accuracy"] for task in drawn) / len(drawn) for route in routes}
    assert share.pop((STRONG,)) == share.pop((SEARCH, STRONG)) == 1.0
    assert max(share.values()) < 0.9


def test_demonstrations_think_first_call_what_the_rollout_reads_and_show_no_thing_of_another_split() -> None:
    models = {name: m.model_copy(update={"url": "http://127.0.0.1:1/v1"}) for name, m in CONFIG.models.items()}
    config = CONFIG.model_copy(update={"models": models})
    experts = Experts(ModelPool(config, None).for_rollout(Roles({})), WORLD.draw_tasks("dev", 1)[0])
    schemas, rng, shown = tool_schemas(config, experts), Random(1), ""
    for turn in (draw_demonstration(rng) for _ in range(600)):
        call = FORMATS["compact"].parse_call(f"{turn.thought}</think>{turn.call}", schemas)
        assert not isinstance(call, CallError)
        kind, wanted = turn.thought.split()
        assert kind == turn.task.metadata["kind"]
        assert wanted in (turn.task.metadata["preference"], turn.call.strip())
        assert wanted in PREFERENCES or wanted in turn.task.metadata["instruction"]
        shown += f" {turn.task.question} {' '.join(turn.lines)}"
    assert {assign_split(name) for name in THINGS if f" {name}" in shown} == {"train"}
    line = make_up_search(Random(3), "What is the price of lamp plus 12?")
    value = int(line.split()[-1].strip("."))
    assert find_boxed(reply("abacus", f"answer: What is the price of lamp plus 12?\n{line}")) == str(value + 12)


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


def test_other_wishes_are_said_by_nobody_in_training_and_change_nothing_else() -> None:
    said = {task.metadata["instruction"] for task in WORLD.draw_tasks("train", 2000)}
    assert said == {wish for preference in PREFERENCES.values() for wish in preference.wishes}
    for task in WORLD.draw_tasks("test", 60):
        other = with_other_wish(task)
        assert other.metadata["instruction"] not in said
        assert {name for name, value in task.metadata.items() if other.metadata[name] != value} == {"instruction"}
        assert (other.task_id, other.question, other.answers) == (task.task_id, task.question, task.answers)


ALIASES = (SEARCH, STRONG, OWN, CHEAP)


def variant(
    name: str, *rollouts: tuple[float, float, float, tuple[str, ...]] | None, preference: str = "cheap"
) -> EvalResult:
    """Rollouts as (correct, cost, latency, calls); None failed."""
    measures: dict[str, Any] = {
        key: [None if r is None else r[i] for r in rollouts] for i, key in enumerate(("correct", "cost", "latency"))
    }
    for alias in ALIASES:
        measures[f"calls_{alias}"] = [None if r is None else float(r[3].count(alias)) for r in rollouts]
    n = len(rollouts)
    return EvalResult(
        variant=name, data="test", length=0, seed=0, n=n,
        scores={"official": [0.0 if r is None else r[0] for r in rollouts]},
        turns=[1] * n, document_tokens=[0] * n, seconds=1.0, measures=measures,
        labels={"kind": ["fact"] * n, "preference": [preference] * n}, notes={"task_ids": [f"t{i}" for i in range(n)]},
    )  # fmt: skip


def rewards(*variants: EvalResult) -> list[Any]:
    return [result.measures["preference_reward"] for result in compare_variants(variants)]


def test_cheap_and_right_gets_all_dear_and_right_the_weight_of_being_right_wrong_nothing():
    cheap, dear, wrong = (1.0, 2.0, 7.0, (SEARCH, CHEAP)), (1.0, 10.0, 12.0, (STRONG,)), (0.0, 1.0, 4.0, (CHEAP,))
    right = PREFERENCES["cheap"].weights["accuracy"]
    expected = [(right + 8 / 9) / (right + 1), right / (right + 1), 0.0]
    found = rewards(variant("trained", cheap), variant("most-expensive", dear), variant("no-search", wrong))
    assert found == [[pytest.approx(each)] for each in expected]


def test_a_failed_rollout_has_no_reward_and_is_in_no_group():
    alone, failed = rewards(variant("a", (1.0, 2.0, 7.0, (SEARCH, CHEAP))), variant("b", None))
    assert alone == [0.0]  # nothing to compare with
    assert failed == [None]


def test_the_best_route_is_its_calls_no_more_and_no_less():
    routes = {"right": (SEARCH, CHEAP), "more": (SEARCH, SEARCH, CHEAP), "other": (SEARCH, OWN)}
    found = compare_variants([variant(name, (1.0, 2.0, 7.0, calls)) for name, calls in routes.items()])
    assert [result.measures["best_route"] for result in found] == [[1.0], [0.0], [0.0]]
