"""Repair tasks: one seed gives one task, splits share no shape of a function, and a bug is one change that shows."""

from __future__ import annotations

import ast
from itertools import combinations
from random import Random

import pytest

from agentic.coding.grading import grade
from agentic.coding.records import read_task
from agentic.coding.repairs.functions import (
    DRAWS,
    REPORTS,
    SPLITS,
    Split,
    draw_report,
    find_shape,
    helpers_of,
    reports_of,
    write_report,
)
from agentic.coding.repairs.generate import call_source, draw_record
from core.sandbox.workspace import IsolatedWorkspace
from core.types import Task


def test_splits_share_no_shape_of_a_function() -> None:
    """Also a broken function has no shape that is right in another split's task by a change of names."""
    shapes = {
        split: {write_report(*report, "order", "total").shape for report in reports_of(split)}
        | {helper.shape for helper in helpers_of(split)}
        for split in SPLITS
    }
    assert all(not shapes[one] & shapes[other] for one, other in combinations(SPLITS, 2))
    assert sum(map(len, shapes.values())) == len(DRAWS) + len(REPORTS) * 6 * 4
    unseen = {draw_report(Random(seed), "test", ("order", "total"), unseen=True).shape for seed in range(99)}
    assert len(unseen) > 30
    assert not unseen & set().union(*shapes.values())
    drawn = draw_record("test", 1, "package")["metadata"]["repository"]
    sources = [
        ast.unparse(node) for text in drawn.values() for node in parse(text) if isinstance(node, ast.FunctionDef)
    ]
    made = [source for source in sources if '"""' in source]
    assert len(made) == 5
    right = sum(find_shape(source) in shapes["test"] for source in made)
    assert right >= 4, "all but the broken one"


def parse(text: str) -> list[ast.stmt]:
    return ast.parse(text).body if "def " in text else []


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


async def test_the_right_patch_is_solved_and_none_is_not(isolation: None) -> None:
    assert await check("dev", 0) == ("solved", "tests_failed")


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
