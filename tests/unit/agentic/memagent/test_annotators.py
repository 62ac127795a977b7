"""What the annotators of the presets show: whole right rollouts, or single turns."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentic.memagent import hotpotqa, laptop
from agentic.memagent.gold import AnnotatorWords, write_gold_trajectory
from agentic.memagent.prompts import EMPTY_MEMORY
from agentic.memagent.rollout import SPEC, MemAgent
from agentic.memagent.world import GOLD
from benchmarks.ruler.generate import generate
from benchmarks.ruler.hqa import hqa
from benchmarks.ruler.niah import Niah
from core.data import write_jsonl
from core.data.files import write_records
from core.data.tasks import read_tasks
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import RolloutError
from core.types import Sampling, Task
from core.worlds.needles import KEYS, VALUES

TINY = Niah(value_type="words", num_k=4, key_words=KEYS, value_words=VALUES, bare_question=True)


@pytest.fixture(scope="module")
def method(tokenizer: Any) -> MemAgent:
    section = SPEC.load("tiny").memagent
    return MemAgent(section.model_copy(update={"max_memory_tokens": 48, "max_final_tokens": 24}), tokenizer)


def draw_tasks(family: Niah, tokenizer: Any, count: int) -> list[Task]:
    return list(generate(family, length=300, count=count, tokenizer=tokenizer, split="train", budget="document"))


@pytest.mark.parametrize(("family", "words"), [(TINY, GOLD), (Niah(num_k=4), laptop.GOLD)], ids=["tiny", "laptop"])
async def test_a_policy_that_writes_them_sees_their_prompts_and_has_the_reward(
    method: MemAgent, tokenizer: Any, family: Niah, words: AnnotatorWords
) -> None:
    for task in draw_tasks(family, tokenizer, 8):
        for needle in task.metadata["needles"]:
            assert needle["queried"] is False or needle.pop("queried")  # one without it is asked for
        turns = write_gold_trajectory(method, task, words)
        script = iter([completion for _, completion in turns])
        policy = ScriptedPolicy(lambda prompt, sampling, script=script: next(script))
        trajectory = await method.rollout(task, Roles({"policy": policy}), Sampling())
        assert [(turn.prompt_ids, turn.completion.token_ids) for turn in trajectory.turns] == turns
        assert trajectory.reward == 1.0
        notes = [tokenizer.decode(completion, skip_special_tokens=True) for _, completion in turns[:-1]]
        asked = next(needle for needle in task.metadata["needles"] if "queried" not in needle)
        known = [asked["value"] in note for note in notes]
        assert known == sorted(known), "nothing until the fact was read, and then the fact to the end"
        texts = [tokenizer.decode(section) for section in method.sections(task)[0]]
        needle = words.needle.format(**asked)
        assert known == ["".join(texts[: place + 1]).count(needle) > 0 for place in range(len(texts))]


def test_a_task_without_its_needle_is_named(method: MemAgent, tokenizer: Any) -> None:
    (task,) = draw_tasks(TINY, tokenizer, 1)
    with pytest.raises(RolloutError, match="lacks the sentence 'One of the special magic words for"):
        write_gold_trajectory(method, replace(task, context="The grass is green."), GOLD)
    with pytest.raises(RolloutError, match=r"takes \d+ tokens of 48"):
        write_gold_trajectory(method, task, replace(GOLD, fact="A long note. " * 20))
    with pytest.raises(RolloutError, match="it must ask for one needle, and asks for 0"):
        write_gold_trajectory(method, replace(task, metadata={}), GOLD)


FACTS = ("Ada wrote the Engine Notes.", " The Engine Notes appeared in 1843.")
OTHER = " ".join(f"Sentence {i} says nothing." for i in range(20))


@pytest.fixture
def recipe(tmp_path: Path, tokenizer: Any) -> Any:
    record = {
        "question": "When did Ada's notes appear?",
        "answer": "1843",
        "supporting_facts": [["Ada", 0], ["Notes", 0], ["Notes", 2]],
        "context": [["Ada", [FACTS[0], OTHER]], ["Void", [OTHER]], ["Notes", ["They are long.", OTHER, FACTS[1]]]],
    }
    write_records(tmp_path / "hotpotqa.json", [record])
    tasks = generate(hqa(tmp_path / "hotpotqa.json"), length=1200, count=1, tokenizer=tokenizer, budget="document")
    write_jsonl(tmp_path / "train.jsonl", tasks)
    sizes = [f"memagent.{name}=400" for name in ("chunk_tokens", "max_memory_tokens")]
    return SPEC.load("desk", [f"data.train={tmp_path / 'train.jsonl'}", "model.max_model_len=4096", *sizes])


NOTES = {"Ada: Ada wrote the Engine Notes.", "Notes: They are long. The Engine Notes appeared in 1843."}


def test_a_whole_right_rollout_and_the_cold_start_keep_what_was_noted(recipe: Any, tokenizer: Any) -> None:
    tasks = read_tasks(recipe.data.train, require_context=True)
    *updates, final = hotpotqa.WORLD.solve(Random(0), recipe, tokenizer, tasks)  # type: ignore[misc]
    memories = [tokenizer.decode(completion[:-1]) for _, completion in updates]
    assert set(memories[-1].splitlines()) == NOTES
    for before, after in pairwise(memories):
        assert before == hotpotqa.NOTHING or after.startswith(before)
    assert memories[-1] in tokenizer.decode(final[0])
    shown = [turn for [turn] in islice(hotpotqa.WORLD.demonstrate(Random(0), recipe, tokenizer), 60)]  # type: ignore[misc]
    assert set(shown) == {*updates, final}, "the cold start shows the same turns, one at a time"
    changes = [before != after for before, after in pairwise([hotpotqa.NOTHING, *memories])]
    grows = {turn for turn, change in zip(updates, changes, strict=True) if change}
    read = [turn in grows for turn in shown if turn != final]
    assert 0.3 < sum(read) / len(read) < 0.7


@pytest.mark.parametrize(("values", "noted"), [(["One.", "Three."], "A: One."), (["One. Three."], "A: One. Three.")])
def test_a_note_holds_what_the_section_shows_or_all_of_an_older_file(values: list[str], noted: str) -> None:
    needles = [{"key": "A", "value": value} for value in values]
    task = Task("t", "?", ("b",), "Document 1:\nA\nOne. Two. Three.", {"needles": needles})
    assert hotpotqa.find_notes(task, "Document 1:\nA\nOne. Two.") == noted
    assert hotpotqa.find_notes(task, " Three.") == (
        "Three." if len(values) == 2 else ""
    )  # where the section before has cut it


def read_slot(text: str, tag: str) -> str | None:
    found = re.search(rf"<{tag}>\s*(.*?)\s*</{tag}>", text, re.DOTALL)
    return found and found[1]


def test_turns_are_right_and_none_updates_a_memory_that_holds_anything(tmp_path: Path, tokenizer: Any) -> None:
    family, path = Niah(num_k=4, bare_question=True), tmp_path / "train.jsonl"
    write_jsonl(path, generate(family, length=900, count=20, tokenizer=tokenizer, split="train", budget="document"))
    shown = laptop.WORLD.demonstrate(Random(0), SPEC.load("laptop", [f"data.train={path}"]), tokenizer)  # type: ignore[misc]
    kinds = Counter[str]()
    for [(prompt_ids, completion)] in islice(shown, 400):
        prompt, reply = tokenizer.decode(prompt_ids), tokenizer.decode(completion[:-1])
        asked = re.search(r"magic number for (\S+) mentioned", read_slot(prompt, "problem") or "")
        assert asked is not None
        section, memory = read_slot(prompt, "section"), read_slot(prompt, "memory") or ""
        known = re.search(rf"{asked[1]} is:? (\d+)\.", memory if section is None else section)
        if section is None:
            kind, right = "boxed" if known else "unknown", f"\\boxed{{{known[1] if known else 'unknown'}}}"
        else:
            assert memory == EMPTY_MEMORY
            kind = "read" if known else "other keys" if " is: " in section else "noise"
            right = f"The special magic number for {asked[1]} is {known[1]}." if known else laptop.NOTHING
        assert reply == right
        kinds[kind] += 1
    assert kinds.keys() == {"read", "other keys", "noise", "boxed", "unknown"}
    assert min(kinds.values()) > 5
    assert 0.1 < (kinds["boxed"] + kinds["unknown"]) / 400 < 0.3
