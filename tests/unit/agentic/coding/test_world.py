"""The `tiny` preset: demonstrations show the form of edits alone, and are what the rollout asks and runs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentic.coding.config import CodingRecipe
from agentic.coding.prompts import SCHEMAS
from agentic.coding.repairs.functions import RECORDS, reports_of, write_report
from agentic.coding.repairs.generate import draw_record, state_problem
from agentic.coding.repairs.mutations import SIGNS, find_sign, put_sign
from agentic.coding.rollout import SPEC, CodingAgent
from agentic.coding.world import WORLD, draw_demonstrations, encode, solve
from core.data import read_tasks
from core.data.files import write_records
from core.policy.base import Roles
from core.text.conversation import Renderer
from core.types import Sampling, Task
from tests.kit import script_policy


@pytest.fixture(scope="module")
def recipe() -> CodingRecipe:
    loaded = SPEC.load("tiny", ["warm_start.copy_steps=1", "warm_start.steps=8", "warm_start.batch_size=4"])
    assert isinstance(loaded, CodingRecipe)
    return loaded


def test_demonstrations_put_any_other_sign_and_one_in_three_is_right() -> None:
    rng, signs, right, count = Random(0), Counter[str](), 0, 0
    sources = {
        write_report(*report, record, field).source for report in reports_of("train") for record, field in RECORDS
    }
    for _ in range(40):
        for shown in draw_demonstrations(rng):
            arguments = json.loads(shown.call.split("\n")[2])["arguments"]
            before = shown.text.splitlines()
            after = [*before]
            after[arguments["line"] - 1] = arguments["text"]
            assert sum(old != new for old, new in zip(before, after, strict=True)) == 1
            sign = find_sign("\n".join(after))
            assert put_sign("\n".join(before), sign) == "\n".join(after)
            signs[sign] += 1
            right += "\n".join(after) in sources
            count += 1
    assert count == 320
    assert set(signs) == set(SIGNS)
    assert 0.7 * count / 4 < min(signs.values())
    assert max(signs.values()) < 1.4 * count / 4
    assert 0.25 < right / count < 0.42


async def test_the_warm_starts_prompts_are_those_of_a_rollout(
    isolation: None, recipe: CodingRecipe, tokenizer: Any
) -> None:
    shown = draw_demonstrations(Random(1))[0]
    metadata = {
        "repository": {shown.path: shown.text},
        "problem_statement": state_problem(shown.path),
        "cases": [{"function": "a.b", "arguments": [], "returns": 1}],
    }
    method = CodingAgent(recipe, tokenizer)
    policy = script_policy(tokenizer, [shown.call, shown.end])
    done = await method.rollout(Task("1", "q", ("x",), metadata=metadata), Roles({"policy": policy}), Sampling())
    asked = [(turn.prompt_ids, turn.completion.token_ids) for turn in done.turns]
    tools = [SCHEMAS[name].to_openai() for name in recipe.coding.tools]
    assert asked == list(encode(shown, Renderer(tokenizer), tools))


async def test_a_supervised_repair_is_right_and_its_prompts_are_those_of_a_rollout(
    isolation: None, recipe: CodingRecipe, tokenizer: Any, tmp_path: Path
) -> None:
    path = tmp_path / "train.jsonl"
    write_records(path, [draw_record("train", number, "function") for number in range(4)])
    loaded = SPEC.load("tiny", [f"data.train={path}", "supervised.batch_size=8"])
    assert isinstance(loaded, CodingRecipe)
    assert loaded.supervised is not None
    turns = next(iter(WORLD.draw_solutions(loaded.supervised, loaded, tokenizer)))
    task = read_tasks(path, require_context=False)[0]
    shown = solve(task)
    policy = script_policy(tokenizer, [shown.call, shown.end])
    done = await CodingAgent(recipe, tokenizer).rollout(task, Roles({"policy": policy}), Sampling())
    assert (done.reward, done.log["verdict"]) == (1.0, "solved")
    assert {(turn.prompt_ids, turn.completion.token_ids) for turn in done.turns} <= set(turns)
