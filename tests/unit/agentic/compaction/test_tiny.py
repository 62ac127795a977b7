"""The `tiny` preset: tasks that cannot be guessed, and demonstrations that are true and favour no fact."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentic.compaction.prompts import INSTRUCTIONS, REQUEST
from agentic.compaction.rollout import SPEC
from agentic.compaction.tiny import tasks
from agentic.compaction.tiny.baselines import BASELINES
from agentic.compaction.tiny.demonstrations import FACTS_OF_A_SUMMARY, UNKNOWN, AimlessAnnotator
from agentic.compaction.tiny.tasks import MOST_PAGES, draw_task, generate
from agentic.compaction.tiny.warm_start import batches
from agentic.compaction.tiny.warm_start import demonstrate as demonstrate_turns
from agentic.compaction.tiny.words import ANIMALS, THINGS
from core.data import read_tasks
from core.policy.base import Roles
from core.types import Sampling, Trajectory

FACT = re.compile(r" (\w+) has (\w+)\.")


def test_a_task_has_each_animal_once_and_its_answer_on_the_pages() -> None:
    for task in generate("train", 200, (3, 6)):
        facts = FACT.findall(task.context)
        owners = [owner for owner, _ in facts]
        assert len(owners) == len(set(owners))
        asked = re.findall(r"the (\w+) have", task.question)[0]
        assert task.answers == (f"{asked} has {dict(facts)[asked]}.",)
        assert len(task.context.split("\n\n")) == task.metadata["pages"] in range(3, 7)
    assert generate("train", 9, (3, 6)) == generate("train", 9, (3, 6)) != generate("test", 9, (3, 6))


def test_the_command_writes_tasks_and_names_a_wrong_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*pages: int) -> None:
        words = ["tasks", "--split", "dev", "--count", "3", "--out", str(tmp_path / "dev.jsonl"), "--pages"]
        monkeypatch.setattr(sys, "argv", [*words, *map(str, pages)])
        tasks.main()

    call(MOST_PAGES, MOST_PAGES)
    assert [task.metadata["pages"] for task in read_tasks(tmp_path / "dev.jsonl")] == [MOST_PAGES] * 3
    with pytest.raises(SystemExit, match=f"give two numbers from 1 to {MOST_PAGES}"):
        call(9, 5)


def test_words_are_distinct_and_one_token_each(tokenizer: Any) -> None:
    words = (*ANIMALS, *THINGS)
    assert len(set(words)) == len(words)
    assert {len(tokenizer.encode(f" {word}")) for word in words} == {1}


async def demonstrate(method: Any, seed: int) -> tuple[Any, Trajectory]:
    rng = Random(seed)
    task = draw_task(rng, "t", (3, 6))
    annotator = AimlessAnnotator(method.tokenizer, rng)
    return task, await method.rollout(task, Roles({"policy": annotator}), Sampling())


async def test_demonstrations_are_true_and_keep_asked_facts_as_rarely_as_others(method: Any) -> None:
    kept = {"asked": 0, "others": 0}
    expected = {"asked": 0.0, "others": 0.0}
    for seed in range(150):
        task, trajectory = await demonstrate(method, seed)
        for turn in trajectory.turns:
            shown = method.tokenizer.decode(turn.prompt_ids)
            written = dict(FACT.findall(method.tokenizer.decode(turn.completion.token_ids)))
            question, _, history = shown.partition(INSTRUCTIONS)
            asked = set(re.findall(r"the (\w+) have", question))
            known = dict(FACT.findall(history))
            assert all(known.get(name, UNKNOWN) == value for name, value in written.items())
            assert all(value in (UNKNOWN, dict(FACT.findall(task.context)).get(name)) for name, value in known.items())
            if REQUEST not in history:
                continue
            named = asked | known.keys()
            assert len(written) == FACTS_OF_A_SUMMARY
            for group, names in (("asked", asked), ("others", named - asked)):
                kept[group] += len(names & written.keys())
                expected[group] += len(names) * FACTS_OF_A_SUMMARY / len(named)
    assert kept["asked"] > 80
    for group in kept:
        assert kept[group] == pytest.approx(expected[group], rel=0.15)


async def test_a_demonstration_answers_rightly_what_its_context_holds(method: Any) -> None:
    rewards = []
    for seed in range(60):
        task, trajectory = await demonstrate(method, seed)
        last = method.tokenizer.decode(trajectory.turns[-1].prompt_ids)
        assert trajectory.reward == (task.answers[0] in last)
        rewards.append(trajectory.reward)
    assert 0 < sum(rewards) < 30


def test_what_follows_a_guess_is_shown_and_the_guess_is_not(method: Any) -> None:
    """A prompt may hold a wrong fact; no completion does, and a page overrules it."""
    rng, wrong = Random(0), 0
    for _ in range(200):
        for prompt, completion in demonstrate_turns(rng, method, 1.0):
            _, _, history = method.tokenizer.decode(prompt).partition(INSTRUCTIONS)
            pages = "".join(message for message in history.split("<|im_start|>") if message.startswith("tool"))
            true, known = dict(FACT.findall(pages)), dict(FACT.findall(history))
            wrong += any(known[name] != value for name, value in FACT.findall(history) if name in true)
            for name, value in FACT.findall(method.tokenizer.decode(completion)):
                assert value == true.get(name, known.get(name, UNKNOWN))
    assert wrong > 10


def test_the_warm_start_has_summaries_answers_and_calls_that_fit_the_preset(tokenizer: Any) -> None:
    recipe = SPEC.load("tiny", ["warm_start.copy_steps=1", "warm_start.lookup_steps=9", "warm_start.steps=8"])
    drawn = list(batches(recipe.warm_start, recipe, tokenizer))
    copies, lookups, made = drawn[0], drawn[1:10], drawn[10:]
    assert all(prompt == completion for prompt, completion in copies)
    for prompt, completion in (example for batch in lookups for example in batch):
        shown, repeated = (dict(FACT.findall(tokenizer.decode(ids))) for ids in (prompt, completion))
        assert {name: value for name, value in repeated.items() if value != UNKNOWN} == shown
    written = [tokenizer.decode(completion) for batch in made for _, completion in batch]
    assert all(len(batch) == recipe.warm_start.batch_size for batch in made)
    assert all(text.endswith("<|im_end|>") for text in written)
    for start in ("next", "\\boxed{", " "):
        assert sum(text.startswith(start) for text in written) > 10
    assert max(len(completion) for batch in made for _, completion in batch) <= recipe.compaction.max_summary_tokens


async def test_baselines_keep_nothing_or_what_the_annotator_keeps(method: Any) -> None:
    recipe = SPEC.load("tiny")
    roles = Roles({"policy": AimlessAnnotator(method.tokenizer, Random(0))})
    score = {}
    for name, make in BASELINES.items():
        baseline = make(recipe, method.tokenizer)
        tasks = enumerate(generate("dev", 120, (3, 6)))
        runs = [await baseline.rollout(task, roles, Sampling(seed=seed)) for seed, task in tasks]
        score[name] = sum(run.reward for run in runs) / len(runs)
        assert any("Summary:" in method.tokenizer.decode(run.turns[-1].prompt_ids) for run in runs) == (
            name == "aimless-summary"
        )
    assert score["no-summary"] < score["aimless-summary"] < 0.5
