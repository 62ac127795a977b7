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
from agentic.coding.repairs.generate import draw_record, state_problem, write_patch
from agentic.coding.repairs.mutations import list_mutations
from agentic.coding.rollout import SPEC, build
from agentic.coding.tiny.baselines import BASELINES
from agentic.coding.tiny.demonstrations import demonstrate
from agentic.coding.tiny.tasks import main
from agentic.coding.tiny.warm_start import batches, encode
from core.config import WarmStartSection
from core.data import read_tasks
from core.policy.base import Roles
from core.text.conversation import Renderer
from core.types import Sampling, Task
from tests.kit import script_policy


@pytest.fixture(scope="module")
def recipe() -> CodingRecipe:
    loaded = SPEC.load("tiny", ["warm_start.copy_steps=1", "warm_start.steps=8", "warm_start.batch_size=4"])
    assert isinstance(loaded, CodingRecipe)
    return loaded


def test_demonstrations_edit_any_place_and_are_seldom_right() -> None:
    """A policy that follows them repairs about one task in ten."""
    rng, lines, right, count = Random(0), Counter[int](), 0, 0
    sources = {
        write_report(*report, record, field).source for report in reports_of("train") for record, field in RECORDS
    }
    for _ in range(5):
        for shown in demonstrate(rng):
            arguments = json.loads(shown.call.split("\n")[1])["arguments"]
            before = shown.text.splitlines()
            after = [*before]
            after[arguments["line"] - 1] = arguments["text"]
            assert sum(old != new for old, new in zip(before, after, strict=True)) == 1
            assert "\n".join(after) in {mutation.source for mutation in list_mutations("\n".join(before))}
            lines[arguments["line"]] += 1
            right += "\n".join(after) in sources
            count += 1
    assert len(lines) >= 4
    assert right < count / 4


async def test_the_warm_starts_prompts_are_those_of_a_rollout(
    isolation: None, recipe: CodingRecipe, tokenizer: Any
) -> None:
    shown = demonstrate(Random(1))[0]
    metadata = {
        "repository": {shown.path: shown.text},
        "problem_statement": state_problem(shown.path),
        "cases": [{"function": "a.b", "arguments": [], "returns": 1}],
    }
    method = build(recipe, tokenizer)
    policy = script_policy(tokenizer, [shown.call, shown.end])
    done = await method.rollout(Task("1", "q", ("x",), metadata=metadata), Roles({"policy": policy}), Sampling())
    asked = [(turn.prompt_ids, turn.completion.token_ids) for turn in done.turns]
    tools = [SCHEMAS[name].to_openai() for name in recipe.coding.tools]
    assert asked == list(encode(shown, Renderer(tokenizer), tools))


def test_the_warm_start_has_drills_and_turns_that_fit(recipe: CodingRecipe, tokenizer: Any) -> None:
    assert isinstance(recipe.warm_start, WarmStartSection)
    drawn = list(batches(recipe.warm_start, recipe, tokenizer))
    assert [len(batch) for batch in drawn] == [4] * recipe.warm_start.total_steps
    longest = max(len(prompt) + len(completion) for batch in drawn for prompt, completion in batch)
    assert longest <= recipe.coding.context_tokens


@pytest.mark.parametrize("name", BASELINES)
async def test_a_baseline_makes_its_edit(isolation: None, recipe: CodingRecipe, tokenizer: Any, name: str) -> None:
    record = draw_record("test", 3, "function")
    task = Task("1", record["prompt"], (record["label"],), metadata=record["metadata"])
    done = await BASELINES[name](recipe, tokenizer).rollout(task, Roles({}), Sampling(seed=1))
    assert done.metrics["calls_edit"] == 1
    assert done.log["verdict"] in ("solved", "tests_failed")
    assert done.log["diff"].count("\n+") == 2, "the line and the name of its file"


def test_the_command_writes_tasks_that_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "dev.jsonl"
    words = ["tasks", "--split", "dev", "--size", "function", "--count", "3", "--out", str(out)]
    monkeypatch.setattr("sys.argv", words)
    main()
    tasks = read_tasks(out, **SPEC.reading_options(SPEC.load("tiny")))
    assert [task.answers for task in tasks] == [("dev-0",), ("dev-1",), ("dev-2",)]


@pytest.mark.usefixtures("long")
def test_no_other_constant_change_repairs_more_tasks_than_moving_the_bound() -> None:
    """Of 400 test tasks; a constant is the n-th change of a kind in the order of `list_mutations`."""
    repaired: Counter[tuple[str, int]] = Counter()
    for number in range(400):
        metadata = draw_record("test", number, "function")["metadata"]
        (path,) = (path for path in metadata["repository"] if not path.startswith("tests/"))
        broken, seen = metadata["repository"][path], Counter[str]()
        for mutation in list_mutations(broken.strip()):
            place = mutation.kind, seen[mutation.kind]
            seen[mutation.kind] += 1
            repaired[place] += write_patch(path, broken, f"{mutation.source}\n") == metadata["patch"]
    assert sum(repaired.values()) == 400
    assert repaired.most_common(1) == [(("bound", 0), 61)]
