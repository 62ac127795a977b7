"""The presets `tiny` and `visits`: splits share nothing, demonstrations are blind, and searches find what is asked."""

from __future__ import annotations

import re
from collections import Counter
from random import Random
from typing import Any

import pytest

from agentic.search_r1 import visits
from agentic.search_r1.prompts import LOOKED_FOR
from agentic.search_r1.rollout import SPEC, SearchR1
from agentic.search_r1.world import (
    OWNER,
    PERSONS,
    THINGS,
    TOWNS,
    WORLD,
    find_facts,
    make_searcher,
    write_passages,
    write_right_turn,
)
from core.data.files import write_records
from core.policy.base import Roles
from core.types import Sampling, Task
from core.worlds import SPLITS
from tests.kit import serve_corpus
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


TOKENIZER = visits.WORLD.train_tokenizer()


async def test_one_search_and_one_visit_find_the_answer_in_the_real_index(tmp_path: Any) -> None:
    write_records(tmp_path / "corpus.jsonl", visits.write_passages())
    with serve_corpus(tmp_path / "corpus.jsonl") as url:
        method = SearchR1(load(url, preset="visits"), TOKENIZER)
        searcher = make_searcher(TOKENIZER, visits.write_right_turn)
        for task in [task for split in SPLITS for task in visits.WORLD.draw_tasks(split, 20)]:
            done = await method.rollout(task, Roles({"policy": searcher}), Sampling())
            assert (done.reward, done.metrics["calls_search"], done.metrics["calls_visit"]) == (1.0, 1, 1)
            assert [turn.role for turn in done.turns if turn.trained] == ["act", "act", "summary", "act"]


def test_demonstrations_search_and_look_for_anything_and_sum_up_what_is_looked_for() -> None:
    shown_turns = visits.WORLD.demonstrate(Random(0), SPEC.load("visits"), TOKENIZER)
    visit_form = visits.VISIT.format(r"(\w+)", r"(\w+)", r"(\w+ \w+)", r"(\w+)")
    chosen = Counter[tuple[str, bool]]()
    for _ in range(400):
        question = ""
        for prompt, completion in next(shown_turns):
            text, said = TOKENIZER.decode(prompt), TOKENIZER.decode(completion)
            if LOOKED_FOR in text:
                assert said.split()[0] in text.partition(LOOKED_FOR)[2]
                continue
            question = question or text
            relation, role, thing = re.findall(r"the (\w+) of the (\w+) of the (\w+ \w+)\?", question)[0]
            if said.startswith("<search>") and "<information>" not in text:
                chosen["search", thing in said] += 1
            if said.startswith("<answer>"):
                assert said.removeprefix("<answer> ").removesuffix("</answer>") in TOWNS
            if visited := re.fullmatch(visit_form, said):
                assert (visited[1], visited[2]) == (relation, role)
                assert f"{role} {visited[3]}: " in text
                chosen["goal", visited[4] == relation] += 1
    for what in ("search", "goal"):
        right, wrong = chosen[what, True], chosen[what, False]
        assert 0.4 < right / (right + wrong) < 0.6, (what, right, wrong)
