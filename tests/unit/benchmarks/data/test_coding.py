"""Published functions become repair tasks whose repair is graded as solved and whose bug is not."""

from __future__ import annotations

import ast
import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentic.coding.grading import grade
from agentic.coding.records import read_task
from benchmarks.data import coding
from benchmarks.data.coding import CODING_BENCHMARKS, MUTANTS, convert_humanevalfix, convert_mbpp
from benchmarks.data.sets import Located, read_benchmark
from core.data.files import DataError, SourceLocation, write_records
from core.sandbox.workspace import IsolatedWorkspace
from core.types import Task

pytestmark = pytest.mark.usefixtures("isolation")

FIX = {
    "task_id": "Python/7", "entry_point": "last", "bug_type": "value misuse", "docstring": "Last item.",
    "declaration": "def last(items):\n",
    "canonical_solution": "    return items[-1]\n", "buggy_solution": "    return items[1]\n",
    "test": "\n\ndef check(last):\n    assert last([1, 2, 3]) == 3\n\ncheck(last)",
}  # fmt: skip
CODE = "import math\nONE = 1\ndef other(x):\n    return x + ONE\ndef area(w, h):\n    return w * h + other(0) - ONE\n"
MBPP = {
    "task_id": 700, "text": "Write a function to find the area.", "code": CODE, "test_setup_code": "",
    "test_list": ["assert area(2, 3) == 6", "assert area(0, 0) == 0"], "challenge_test_list": [],
}  # fmt: skip


def _locate(*records: dict[str, Any]) -> list[Located]:
    return [(SourceLocation(Path("x.jsonl"), number, "line"), record) for number, record in enumerate(records)]


async def _grade(task: Task, diff: str) -> str:
    found = read_task(task)
    async with IsolatedWorkspace(workdir=found.workdir) as workspace:
        await workspace.start(found.files)
        return (await grade(workspace, found, diff.encode(), timeout_s=30)).verdict


def _verdicts(task: Task) -> tuple[str, str]:
    return asyncio.run(_grade(task, task.metadata["patch"])), asyncio.run(_grade(task, ""))


def test_a_bug_of_humanevalfix_is_repaired_by_the_published_solution() -> None:
    (task,) = convert_humanevalfix("humanevalfix-test", _locate(FIX), Counter())
    assert (task.task_id, task.metadata["kind"]) == ("humanevalfix-7", "value misuse")
    assert task.metadata["repository"]["solution.py"] == "def last(items):\n    return items[1]\n"
    assert _verdicts(task) == ("solved", "tests_failed")


@pytest.mark.parametrize(
    "change", [{"buggy_solution": FIX["canonical_solution"]}, {"canonical_solution": "    pass\n"}]
)
def test_a_record_that_proves_nothing_is_left_out_and_counted(change: dict[str, str]) -> None:
    told: Counter[str] = Counter()
    assert list(convert_humanevalfix("p", _locate({**FIX, **change}), told)) == []
    assert told.total() == 1
    with pytest.raises(DataError, match=r"does not end with check\(last\)"):
        list(convert_humanevalfix("p", _locate({**FIX, "test": "assert True"}), told))


def test_a_busy_machine_loses_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coding, "TEST_SECONDS", 0.5)
    slept = {**FIX, "canonical_solution": f"    __import__('time').sleep(1)\n{FIX['canonical_solution']}"}
    assert len(list(convert_humanevalfix("humanevalfix-test", _locate(slept), Counter()))) == 1
    monkeypatch.setattr(coding, "RIGHT_CPU_S", 0.0)
    assert not list(convert_humanevalfix("humanevalfix-test", _locate(slept), Counter()))


def test_every_mutant_of_mbpp_fails_a_test_and_differs_in_one_place() -> None:
    tasks = list(convert_mbpp("mbpp-train", _locate(MBPP), Counter()))
    assert len(tasks) == MUTANTS
    sources = {task.metadata["repository"]["solution.py"] for task in tasks}
    assert len(sources) == MUTANTS
    for task in tasks:
        source, patch = task.metadata["repository"]["solution.py"], task.metadata["patch"]
        assert ast.get_docstring(ast.parse(source).body[3]) == MBPP["text"]  # type: ignore[arg-type]
        assert patch.count("\n+") - patch.count("\n+++") == 1
        assert task.metadata["FAIL_TO_PASS"]
        assert len(task.metadata["FAIL_TO_PASS"] + task.metadata["PASS_TO_PASS"]) == 2
    assert _verdicts(tasks[0]) == ("solved", "tests_failed")
    assert [task.task_id for task in convert_mbpp("mbpp-test", _locate(MBPP), Counter())] == ["mbpp-700-1"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"test_list": ["assert area(2, 3) == 7"]}, "the published solution fails its tests here"),
        (
            {"test_setup_code": "size = other(6)", "test_list": ["assert area(2, 3) == size - 1"]},
            "the set-up of its tests, which comes first here, needs the solution",
        ),
        ({"test_list": ["assert 1 == 1"]}, "the tests call no function of the code"),
        (
            {"code": "def area(w, h):\n    return 6", "test_list": ["assert area(2, 3) > 0"]},
            "no mutation of the function",
        ),
    ],
)
def test_a_function_of_mbpp_that_gives_no_bug_is_left_out_and_counted(change: dict[str, Any], told: str) -> None:
    counts: Counter[str] = Counter()
    assert list(convert_mbpp("mbpp-train", _locate({**MBPP, **change}), counts)) == []
    ((what, count),) = counts.items()
    assert told in what
    assert count == 1


def test_mbpp_keeps_its_published_splits(tmp_path: Path) -> None:
    texts = {number: f"Write a function for number {number}." for number in (10, 510, 600, 974)}
    records = [{**MBPP, "task_id": number, "text": text} for number, text in texts.items()]
    write_records(tmp_path / "mbpp.jsonl", records)
    splits, told = read_benchmark("mbpp", CODING_BENCHMARKS["mbpp"], tmp_path / "mbpp.jsonl")
    found = {split: [task.task_id for task in tasks] for split, tasks in splits.items()}
    assert (found["test"], found["eval"]) == (["mbpp-510-1"], ["mbpp-600-1"])
    assert {name.rpartition("-")[0] for name in found["train"]} == {"mbpp-974"}
    assert told == {"left out: the published split prompt": 1}
