"""The `tiny` preset: splits share nothing, demonstrations are blind to the answer, and searches find what is asked."""

from __future__ import annotations

import re
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentic.search_r1.rollout import SPEC, SearchR1
from agentic.search_r1.tiny import supervised, tasks, world
from agentic.search_r1.tiny.baselines import BASELINES
from agentic.search_r1.tiny.demonstrations import AimlessSearcher, MadeUpSearch, Searcher, demonstrate
from agentic.search_r1.tiny.tasks import ASKS, HOME, OWNER, generate
from agentic.search_r1.tiny.warm_start import batches
from agentic.search_r1.tiny.world import PERSONS, SPLITS, THINGS, TOWNS_OF, WORDS, find_facts
from core.config import SupervisedSection
from core.data import read_tasks
from core.policy.base import Roles
from core.types import Sampling, Task
from tests.unit.agentic.search_r1.conftest import load

ASKED = re.compile(rf"{OWNER} of the (\w+ \w+)")


async def play(method: Any, task: Task, policy: Any, seed: int = 0) -> Any:
    return await method.rollout(task, Roles({"policy": policy}), Sampling(seed=seed))


def test_no_thing_person_or_town_is_in_two_splits_and_answers_are_facts() -> None:
    for titles in (THINGS, PERSONS, TOWNS_OF):
        assert not any(set(titles[one]) & set(titles[other]) for one, other in combinations(SPLITS, 2))
        assert min(map(len, titles.values())) >= 6
    for split in SPLITS:
        drawn = generate(split, 100)
        assert drawn == generate(split, 100) != generate(split, 100, seed=1)
        assert len({task.question for task in drawn}) == 100
        kinds = Counter(task.metadata["searches"] for task in drawn)
        assert set(kinds) == set(ASKS)
        assert min(kinds.values()) > 30
        for task in drawn:
            (thing,) = ASKED.findall(task.question)
            owner = find_facts(thing)[OWNER]
            assert thing in THINGS[split]
            assert owner in PERSONS[split]
            right = owner if task.metadata["searches"] == 1 else find_facts(owner)[HOME]
            assert task.answers == (right,)
            assert right not in task.question
    with pytest.raises(KeyError):
        find_facts("lamp")


def test_the_answer_of_two_searches_is_in_no_passage_about_the_asked_thing() -> None:
    """So the second search is needed, and only the first one says what to search for."""
    by_title = {passage["id"]: passage["contents"] for passage in world.passages()}
    assert len(by_title) == sum(map(len, (*THINGS.values(), *PERSONS.values())))
    for task in generate("test", 200):
        if task.metadata["searches"] == 2:
            (thing,) = ASKED.findall(task.question)
            owner = find_facts(thing)[OWNER]
            assert task.answers[0] not in by_title[thing]
            assert owner not in task.question
            assert task.answers[0] in by_title[owner]


async def test_the_right_searches_find_the_right_answer_in_the_real_index(method: SearchR1) -> None:
    searcher = Searcher(method.tokenizer, supervised.write_right_turn)
    for task in [task for split in SPLITS for task in generate(split, 20)]:
        done = await play(method, task, searcher)
        assert (done.reward, done.metrics["calls_search"]) == (1.0, task.metadata["searches"])


def test_demonstrations_choose_at_random_and_tell_no_fact(tokenizer: Any) -> None:
    rng, recipe = Random(0), SPEC.load("tiny")
    method = MadeUpSearch(recipe, tokenizer, rng)
    first, owners, made_up, true = Counter[bool](), Counter[bool](), 0, 0
    for _ in range(300):
        turns = list(demonstrate(rng, method, AimlessSearcher(tokenizer, rng)))
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


async def test_aimless_searches_are_seldom_right_and_no_search_never_searches(service: str, tokenizer: Any) -> None:
    recipe, drawn = load(service), generate("dev", 60)
    aimless = [await play(BASELINES["aimless-search"](recipe, tokenizer), task, None, seed=1) for task in drawn]
    assert {done.status for done in aimless} == {"completed"}
    assert 0 < sum(done.reward for done in aimless) / 60 < 0.45
    assert {done.metrics["calls_search"] for done in aimless} == {1, 2, 3}
    guess = Searcher(tokenizer, lambda prompt: f" {drawn[0].answers[0]}</answer>")
    done = await play(BASELINES["no-search"](recipe, tokenizer), drawn[0], guess)
    assert (done.reward, done.metrics["calls_search"], len(done.turns)) == (1.0, 0, 1)


def test_the_warm_start_and_the_supervised_baseline_have_turns_that_fit_the_preset(tokenizer: Any) -> None:
    recipe = SPEC.load("tiny", ["warm_start.copy_steps=2", "warm_start.steps=8", "warm_start.batch_size=4"])
    drawn = list(batches(recipe.warm_start, recipe, tokenizer))
    assert all(prompt == completion for batch in drawn[:2] for prompt, completion in batch)
    right = supervised.batches(SupervisedSection(batch_size=4), recipe, tokenizer)
    made = [*drawn[2:], *(next(right) for _ in range(8))]
    assert [len(batch) for batch in made] == [4] * 16
    turns = [(prompt, completion) for batch in made for prompt, completion in batch]
    assert max(len(completion) for _, completion in turns) <= recipe.search_r1.max_tokens
    assert max(len(prompt) for prompt, _ in turns) <= recipe.model.max_model_len - recipe.search_r1.max_tokens
    written = [tokenizer.decode(completion) for _, completion in turns]
    assert all(re.fullmatch(r"<(search|answer)> [a-z ]+</\1>", text) for text in written)
    assert sum("answer" in text for text in written) > 5


def test_words_are_distinct_and_one_token_each(tokenizer: Any) -> None:
    assert len(set(WORDS)) == len(WORDS)
    assert {len(tokenizer.encode(f" {word}")) for word in WORDS} == {1}


def test_the_commands_write_corpus_and_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = str(tmp_path / "out.jsonl")
    monkeypatch.setattr(sys, "argv", ["world", "--out", out])
    world.main()
    assert len(Path(out).read_text().splitlines()) == 2688
    monkeypatch.setattr(sys, "argv", ["tasks", "--split", "test", "--count", "3", "--others", "3", "--out", out])
    tasks.main()
    assert read_tasks(out, require_context=False) == generate("test", 3, others=3)
    assert all(len(re.findall(r"the \w+ \w+", task.question)) >= 4 for task in generate("test", 3, others=3))
