"""The world of the `tiny` preset: which route is best, by the experts' own replies and the real reward."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from agentic.toolorchestra.rollout import SPEC
from agentic.toolorchestra.tiny import tasks, world
from agentic.toolorchestra.tiny.scripted_experts import SCOUT, reply, search_query, tokens
from agentic.toolorchestra.tiny.tasks import (
    BEST,
    CHEAP,
    MODEL_MAPPING,
    OWN,
    PREFERENCES,
    SEARCH,
    STRONG,
    Route,
    generate,
    with_other_preference,
)
from agentic.toolorchestra.tiny.facts import SPLITS, THINGS, passages, assign_split, fact_value
from core.rewards.math import last_boxed
from core.rewards.preference import Features, features, preference_rewards
from core.types import Task

ROUTES: list[Route] = [
    (*((SEARCH,) * searches), expert) for searches, expert in product((0, 1, 2), (STRONG, OWN, CHEAP))
]
LATENCY = {name: model.latency_s or 0.0 for name, model in SPEC.load("tiny").toolorchestra.models.items()}


def outcome(task: Task, route: Route) -> Features:
    """What a rollout of this route gets, by the experts' replies to what the rollout would send them."""
    seen, cost, correct = "", 0.0, False
    for alias in route:
        model = MODEL_MAPPING[alias]
        message = f"{alias.partition('-')[0]}: {task.question}{seen}"
        said = reply(model, message)
        price = task.metadata["tool_pricing"][model]
        cost += price["input_tokens_per_million"] * tokens(message) + price["output_tokens_per_million"] * tokens(said)
        if model == SCOUT:
            fact = said if " of " in said and said != message else "price of anchor"
            seen += f"\nsearch {SEARCH} = [1] {fact.rpartition(' ')[2]} The {fact} is {fact_value(fact)}."
        else:
            correct = last_boxed(said) == task.answers[0]
    latency = sum(LATENCY[MODEL_MAPPING[alias]] for alias in route)
    return features(correct=correct, cost=cost, latency=latency, calls=Counter(route))


@pytest.mark.parametrize("split", SPLITS)
def test_the_stated_route_is_the_only_best_one_for_every_task(split: str):
    for task in generate(split, 200):  # type: ignore[arg-type]
        rewards = preference_rewards([outcome(task, route) for route in ROUTES], task.metadata["pref_vec"])
        best = BEST[task.metadata["kind"]][task.metadata["preference"]]
        assert ROUTES[rewards.index(max(rewards))] == best, task
        assert sorted(rewards)[-2] < max(rewards), task


def test_the_best_route_depends_on_kind_and_on_preference():
    assert len({tuple(by_preference.values()) for by_preference in BEST.values()}) == len(BEST)
    assert len({tuple(BEST[kind][name] for kind in BEST) for name in PREFERENCES}) == len(PREFERENCES)


def test_only_the_dearest_expert_is_always_right():
    drawn = generate("test", 200)
    share = {
        route: sum(outcome(task, route)["accuracy"] for task in drawn) / len(drawn)
        for route in ROUTES
        if route.count(SEARCH) < 2
    }
    assert share.pop((STRONG,)) == share.pop((SEARCH, STRONG)) == 1.0
    assert max(share.values()) < 0.9


def test_splits_share_no_question_no_thing_and_no_expression():
    asked = {split: {task.question for task in generate(split, 60)} for split in SPLITS}
    things = {split: {name for name in THINGS if f" {name}" in " ".join(asked[split])} for split in SPLITS}
    for one, other in (("train", "dev"), ("train", "test"), ("dev", "test")):
        assert not asked[one] & asked[other]
        assert not things[one] & things[other]
    assert all(things.values())
    assert Counter(map(assign_split, THINGS)).keys() == set(SPLITS)


def test_turning_changes_the_wish_alone():
    for task in generate("test", 60):
        other = with_other_preference(task)
        assert (other.task_id, other.question, other.answers) == (task.task_id, task.question, task.answers)
        assert other.metadata["preference"] != task.metadata["preference"]
        assert other.metadata["pref_vec"] != task.metadata["pref_vec"]
        assert other.metadata["tool_pricing"] == task.metadata["tool_pricing"]
        assert with_other_preference(with_other_preference(other)).metadata["preference"] == task.metadata["preference"]


def test_generation_is_repeatable_and_refuses_what_a_split_has_not(monkeypatch: pytest.MonkeyPatch):
    assert generate("test", 30) == generate("test", 30)
    assert generate("test", 30) != generate("test", 30, seed=1)
    monkeypatch.setattr(tasks, "KINDS", {"easy": tasks.KINDS["easy"]})
    with pytest.raises(ValueError, match="fewer than 1000"):
        generate("dev", 1000)


def test_experts_read_and_compute_by_their_own_skill():
    value, fact = fact_value("price of lamp"), "The price of lamp is 41."
    assert last_boxed(reply("sage", "answer: What is 37 times 48?")) == str(37 * 48)
    assert last_boxed(reply("abacus", "answer: What is 37 times 48?")) != str(37 * 48)
    assert last_boxed(reply("sage", "answer: What is the price of lamp plus 1?")) == str(value + 1)
    assert last_boxed(reply("abacus", "answer: What is the price of lamp plus 1?")) == "unknown"
    assert last_boxed(reply("abacus", f"answer: What is the price of lamp plus 1?\n{fact}")) == "42"
    assert last_boxed(reply("reader", f"answer: What is the price of lamp?\n{fact}")) == "41"
    assert last_boxed(reply("reader", "answer: What is 37 plus 48?")) == "37"
    assert last_boxed(reply("reader", "answer: What is the last letter of lamp?")) == "p"
    assert search_query("search: What is 12 minus the age of lamp?") == "age of lamp"
    with pytest.raises(ValueError, match="no question of the tiny preset"):
        reply("sage", "answer: How are you?")


def test_the_corpus_states_every_fact_once():
    texts = [passage["contents"] for passage in passages()]
    assert len(set(texts)) == len(texts) == 8 * len(THINGS)
    assert f"lamp\nThe price of lamp is {fact_value('price of lamp')}." in texts


def test_a_corpus_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["world", "--out", str(tmp_path / "file" / "x")])
    with pytest.raises(SystemExit):
        world.main()
    assert f"error: --out {tmp_path / 'file' / 'x'}: cannot be written" in capsys.readouterr().err
