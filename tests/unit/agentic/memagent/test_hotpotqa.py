"""The demonstrations on HotpotQA: notes are the annotated sentences, and only whole rollouts keep them."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentic.memagent.hotpotqa import NOTHING, WORLD, find_notes
from agentic.memagent.prompts import EMPTY_MEMORY
from agentic.memagent.rollout import SPEC
from benchmarks.ruler.generate import generate
from benchmarks.ruler.hqa import hqa
from core.data import write_jsonl
from core.data.files import write_records
from core.data.tasks import read_tasks
from core.types import Task

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


def test_the_cold_start_shows_single_turns_with_an_empty_memory(recipe: Any, tokenizer: Any) -> None:
    said = set()
    for [(prompt, completion)] in islice(WORLD.demonstrate(Random(0), recipe, tokenizer), 60):  # type: ignore[misc]
        text = tokenizer.decode(prompt)
        assert EMPTY_MEMORY in text if "<section>" in text else all(note in text for note in NOTES)
        said.add(tokenizer.decode(completion[:-1]))
    assert said == {NOTHING, "\\boxed{1843}", *NOTES}


def test_a_whole_right_rollout_keeps_what_it_noted(recipe: Any, tokenizer: Any) -> None:
    tasks = read_tasks(recipe.data.train, require_context=True)
    *updates, final = WORLD.solve(Random(0), recipe, tokenizer, tasks)  # type: ignore[misc]
    memories = [tokenizer.decode(completion[:-1]) for _, completion in updates]
    assert set(memories[-1].splitlines()) == NOTES
    for before, after in pairwise(memories):
        assert before == NOTHING or after.startswith(before)
    assert memories[-1] in tokenizer.decode(final[0])


@pytest.mark.parametrize(("values", "noted"), [(["One.", "Three."], "A: One."), (["One. Three."], "A: One. Three.")])
def test_a_note_holds_what_the_section_shows_or_all_of_an_older_file(values: list[str], noted: str) -> None:
    needles = [{"key": "A", "value": value} for value in values]
    task = Task("t", "?", ("b",), "Document 1:\nA\nOne. Two. Three.", {"needles": needles})
    assert find_notes(task, "Document 1:\nA\nOne. Two.") == noted
    assert find_notes(task, " Three.") == ("Three." if len(values) == 2 else "")  # where the section before has cut it
