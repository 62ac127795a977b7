"""The `tiny` preset: splits share nothing, demonstrations are blind to the answer, and searches find what is asked."""

from __future__ import annotations

import re
from collections import Counter
from random import Random
from typing import Any

import pytest

from agentic.search_r1.rollout import SPEC, SearchR1
from agentic.search_r1.world import (
    OWNER,
    PERSONS,
    THINGS,
    WORLD,
    find_facts,
    make_searcher,
    write_passages,
    write_right_turn,
)
from core.policy.base import Roles
from core.types import Sampling, Task
from core.worlds import SPLITS
from tests.unit.agentic.search_r1.conftest import load

ASKED = re.compile(rf"{OWNER} of the (\w+ \w+)")


async def play(method: Any, task: Task, policy: Any, seed: int = 0) -> Any:
    return await method.rollout(task, Roles({"policy": policy}), Sampling(seed=seed))


async def test_the_right_searches_find_the_right_answer_in_the_real_index(method: SearchR1) -> None:
    searcher = make_searcher(method.tokenizer, write_right_turn)
    for task in [task for split in SPLITS for task in WORLD.draw_tasks(split, 20)]:
        done = await play(method, task, searcher)
        assert (done.reward, done.metrics["calls_search"]) == (1.0, task.metadata["searches"])


def test_demonstrations_choose_at_random_and_tell_no_fact(tokenizer: Any) -> None:
    shown_turns = WORLD.demonstrate(Random(0), SPEC.load("tiny"), tokenizer)
    first, owners, made_up, true = Counter[bool](), Counter[bool](), 0, 0
    for _ in range(300):
        turns = next(shown_turns)
        texts = [tokenizer.decode(completion) for _, completion in turns]
        shown = tokenizer.decode(turns[-1][0])
        (asked,) = ASKED.findall(shown.partition("<information>")[0])
        assert all(text.startswith("<search>") for text in texts[:-1])
        assert texts[-1].startswith("<answer>")
        answer = texts[-1].removeprefix("<answer> ").removesuffix("</answer>")
        first[asked == texts[0][9:-9]] += 1
        if "Who" in shown:
            owners[f"{OWNER} {answer}" in shown] += 1
        for title, relation, value in re.findall(r"\) (\w+ \w+): (\w+) (\w+(?: \w+)?)[,.]", shown):
            made_up += 1
            true += find_facts(title).get(relation) == value
    assert first[True] / 300 == pytest.approx(1 / 2, abs=0.1)
    assert owners[True] / owners.total() == pytest.approx(1 / 2, abs=0.12)
    assert made_up > 500
    assert true / made_up < 0.05


def test_the_answer_of_two_searches_is_in_no_passage_about_the_asked_thing() -> None:
    """So the second search is needed, and only the first one says what to search for."""
    by_title = {passage["id"]: passage["contents"] for passage in write_passages()}
    assert len(by_title) == sum(map(len, (*THINGS.values(), *PERSONS.values())))
    for task in WORLD.draw_tasks("test", 200):
        if task.metadata["searches"] == 2:
            (thing,) = ASKED.findall(task.question)
            owner = find_facts(thing)[OWNER]
            assert task.answers[0] not in by_title[thing]
            assert owner not in task.question
            assert task.answers[0] in by_title[owner]


async def test_aimless_searches_are_seldom_right_and_no_search_never_searches(service: str, tokenizer: Any) -> None:
    recipe, drawn = load(service), WORLD.draw_tasks("dev", 60)
    aimless = [await play(WORLD.baselines["aimless-search"](recipe, tokenizer), task, None, seed=1) for task in drawn]
    assert {done.status for done in aimless} == {"completed"}
    assert 0 < sum(done.reward for done in aimless) / 60 < 0.45
    assert {done.metrics["calls_search"] for done in aimless} == {1, 2, 3}
    guess = make_searcher(tokenizer, lambda prompt: f" {drawn[0].answers[0]}</answer>")
    done = await play(WORLD.baselines["no-search"](recipe, tokenizer), drawn[0], guess)
    assert (done.reward, done.metrics["calls_search"], len(done.turns)) == (1.0, 0, 1)
