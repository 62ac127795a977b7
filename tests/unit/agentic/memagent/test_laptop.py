"""The cold start of the `laptop` preset: single turns that are right and never show a memory worth keeping."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

import pytest

from agentic.memagent.config import MemAgentRecipe
from agentic.memagent.laptop import NOTHING, WORLD
from agentic.memagent.prompts import EMPTY_MEMORY
from agentic.memagent.rollout import SPEC
from benchmarks.ruler.generate import generate
from benchmarks.ruler.niah import Niah
from core.data import write_jsonl


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> MemAgentRecipe:
    path = tmp_path_factory.mktemp("tasks") / "train.jsonl"
    family = Niah(num_k=4, bare_question=True)
    write_jsonl(path, generate(family, length=900, count=20, tokenizer=tokenizer, split="train", budget="document"))
    return SPEC.load("laptop", [f"data.train={path}"])


@pytest.fixture(scope="module")
def turns(recipe: MemAgentRecipe, tokenizer: Any) -> list[tuple[str, str]]:
    """Prompts and completions of the whole cold start, as text."""
    config = recipe.warm_start
    assert config is not None
    examples = [
        example for batch in islice(WORLD.draw_warm_start(config, recipe, tokenizer), config.steps) for example in batch
    ]
    assert len(examples) == config.steps * config.batch_size
    assert all(completion[-1] == tokenizer.eos_token_id for _, completion in examples)
    return [(tokenizer.decode(prompt), tokenizer.decode(completion[:-1])) for prompt, completion in examples]


def _between(text: str, tag: str) -> str | None:
    found = re.search(rf"<{tag}>\s*(.*?)\s*</{tag}>", text, re.DOTALL)
    return found and found[1]


def test_no_update_shows_a_memory_that_holds_anything(turns: list[tuple[str, str]]) -> None:
    updates = [prompt for prompt, _ in turns if _between(prompt, "section") is not None]
    assert {_between(prompt, "memory") for prompt in updates} == {EMPTY_MEMORY}
    assert 0.7 < len(updates) / len(turns) < 0.9


def test_every_turn_is_right(turns: list[tuple[str, str]]) -> None:
    kinds = {"read": 0, "other keys": 0, "noise": 0, "boxed": 0, "unknown": 0}
    for prompt, completion in turns:
        asked = re.search(r"magic number for (\S+) mentioned", _between(prompt, "problem") or "")
        assert asked is not None
        section, memory = _between(prompt, "section"), _between(prompt, "memory") or ""
        known = re.search(rf"{asked[1]} is:? (\d+)\.", memory if section is None else section)
        if section is None:
            assert completion == f"\\boxed{{{known[1] if known else 'unknown'}}}"
            kinds["boxed" if known else "unknown"] += 1
        elif known:
            assert completion == f"The special magic number for {asked[1]} is {known[1]}."
            kinds["read"] += 1
        else:
            assert completion == NOTHING
            kinds["other keys" if " is: " in section else "noise"] += 1
    assert min(kinds.values()) > 5
