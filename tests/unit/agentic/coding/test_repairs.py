"""Repair tasks: one seed gives one task, a bug is one change that shows, and demonstrations choose at random."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentic.coding.config import CodingRecipe
from agentic.coding.grading import grade
from agentic.coding.prompts import SCHEMAS
from agentic.coding.records import read_task
from agentic.coding.repairs.functions import (
    DRAWS,
    RECORDS,
    REPORTS,
    SPLITS,
    MadeFunction,
    Split,
    draw_report,
    helpers_of,
    reports_of,
    write_report,
)
from agentic.coding.repairs.generate import call_source, draw_record, state_problem
from agentic.coding.repairs.mutations import SIGNS, find_sign, put_sign
from agentic.coding.rollout import SPEC, CodingAgent
from agentic.coding.world import WORLD, draw_demonstrations, encode, solve
from core.data import read_tasks
from core.data.files import write_records
from core.policy.base import Roles
from core.sandbox.workspace import IsolatedWorkspace
from core.text.conversation import Renderer
from core.types import Sampling, Task
from tests.kit import script_policy


def find_shape(source: str) -> str:
    """Return the syntax tree of a function without its names, texts and docstring."""
    tree = ast.parse(source).body[0]
    assert isinstance(tree, ast.FunctionDef)
    tree.body = tree.body[1:]
    numbers: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = numbers.setdefault(node.id, str(len(numbers)))
        elif isinstance(node, ast.arg):
            node.arg = numbers.setdefault(node.arg, str(len(numbers)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    tree.name = ""
    return ast.dump(tree)


def find_shapes(functions: Iterable[MadeFunction]) -> set[str]:
    return {find_shape(function.source) for function in functions}


def test_splits_share_no_shape_of_a_function() -> None:
    """Also a broken function has no shape that is right in another split's task by a change of names."""
    shapes = {
        split: find_shapes(
            [*(write_report(*report, "order", "total") for report in reports_of(split)), *helpers_of(split)]
        )
        for split in SPLITS
    }
    assert all(not shapes[one] & shapes[other] for one, other in combinations(SPLITS, 2))
    assert sum(map(len, shapes.values())) == len(DRAWS) + len(REPORTS) * 6 * 4
    unseen = find_shapes(draw_report(Random(seed), "test", ("order", "total"), unseen=True) for seed in range(99))
    assert len(unseen) > 30
    assert not unseen & set().union(*shapes.values())
    drawn = draw_record("test", 1, "package")["metadata"]["repository"]
    nodes = [node for path, text in drawn.items() if path.endswith(".py") for node in ast.parse(text).body]
    sources = [ast.unparse(node) for node in nodes if isinstance(node, ast.FunctionDef) and ast.get_docstring(node)]
    assert len(sources) == 5
    right = sum(find_shape(source) in shapes["test"] for source in sources)
    assert right >= 4, "all but the broken one"


@pytest.mark.parametrize("split", SPLITS)
def test_right_functions_do_what_their_own_tests_say_and_are_never_slow(split: Split) -> None:
    rng = Random(split)
    made = [*helpers_of(split), *(draw_report(rng, split, ("order", "total")) for _ in range(20))]
    for function in made:
        outcomes = [call_source(function.source, function.name, function.draw(rng)) for _ in range(20)]
        assert all("returns" in outcome for outcome in outcomes), function.source
        assert len({str(outcome) for outcome in outcomes}) > 1, function.source


async def check(split: Split, number: int) -> tuple[str, str]:
    """Return the verdicts on the right patch and on no patch."""
    record = draw_record(split, number, "package")
    task = read_task(Task(record["label"], record["prompt"], (record["label"],), metadata=record["metadata"]))
    verdicts = []
    for diff in (record["metadata"]["patch"].encode(), b""):
        async with IsolatedWorkspace(workdir=task.workdir) as workspace:
            await workspace.start(task.files)
            verdicts.append((await grade(workspace, task, diff, timeout_s=60)).verdict)
    return verdicts[0], verdicts[1]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("split", "count"), [("train", 120), ("dev", 20), ("test", 60)])
async def test_many_are_solved_by_their_patch_alone(isolation: None, long: None, split: Split, count: int) -> None:
    verdicts = [await check(split, number) for number in range(count)]
    assert verdicts == [("solved", "tests_failed")] * count


async def test_only_a_record_with_an_image_is_graded_beside_installed_packages(isolation: None) -> None:
    for image in ("", "python:3.11"):
        text = "import sys\n\ndef has_packages():\n    return 'site' in sys.modules\n"
        case = {"function": "a.has_packages", "arguments": [], "returns": bool(image)}
        metadata = {"repository": {"a.py": text}, "problem_statement": "x", "image": image, "cases": [case]}
        task = read_task(Task("1", "x", ("x",), metadata=metadata))
        async with IsolatedWorkspace() as workspace:
            await workspace.start(task.files)
            assert (await grade(workspace, task, b"", timeout_s=30)).verdict == "solved"


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
