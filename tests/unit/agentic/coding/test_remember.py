"""What rollouts of one task would repeat is done once, and nothing else changes by it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agentic.coding import rollout
from agentic.coding.grading import DiffGrade
from agentic.coding.records import read_task
from agentic.coding.remember import Remembered
from agentic.coding.repairs.generate import draw_record
from core.types import Task
from tests.unit.agentic.coding.test_rollout import DONE, REPAIR, TASK, make, play


async def test_rollouts_at_once_are_graded_once(
    isolation: None, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    graded: list[bytes] = []
    real = rollout.grade

    async def count(workspace: Any, task: Any, diff: bytes, timeout_s: float) -> DiffGrade:
        graded.append(diff)
        return await real(workspace, task, diff, timeout_s)

    monkeypatch.setattr(rollout, "grade", count)
    method = make(tokenizer)
    done = await asyncio.gather(*(play(method, answers) for answers in ([REPAIR, DONE], [DONE]) * 3))
    assert [trajectory.reward for trajectory in done] == [1.0, 0.0] * 3
    assert len(graded) == len(set(graded)) == 2
    assert sum(trajectory.metrics["grade_remembered"] for trajectory in done) == 4
    again = await play(make(tokenizer, "coding.remember=0"), [REPAIR, DONE])
    assert (again.reward, again.metrics["grade_remembered"], len(graded)) == (1.0, 0.0, 3)


async def test_tasks_of_two_files_with_one_id_have_grades_of_their_own(
    isolation: None, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def judge(workspace: Any, repository: Any, diff: bytes, timeout_s: float) -> DiffGrade:
        return DiffGrade("solved" if "held out" in repository.statement else "tests_failed")

    monkeypatch.setattr(rollout, "grade", judge)
    method = make(tokenizer)
    held_out = replace(TASK, metadata={**TASK.metadata, "problem_statement": "held out"})
    assert [(await method.grade(task, read_task(task), b""))[0].reward for task in (TASK, held_out)] == [0.0, 1.0]


async def test_what_a_busy_machine_did_is_not_remembered(
    isolation: None, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = iter(["workspace_lost", "no_report", "solved"])

    async def judge(workspace: Any, repository: Any, diff: bytes, timeout_s: float) -> DiffGrade:
        return DiffGrade(next(verdicts))  # type: ignore[arg-type]

    monkeypatch.setattr(rollout, "grade", judge)
    method = make(tokenizer)
    assert [(await method.grade(TASK, read_task(TASK), b""))[0].reward for _ in range(4)] == [0.0, 0.0, 1.0, 1.0]


async def test_who_has_waited_in_vain_works_beside_the_others() -> None:
    remembered: Remembered[int] = Remembered(2)
    working = most = 0

    async def work_in_vain() -> None:
        nonlocal working, most
        async with remembered.hold("a") as found:
            assert found is None
            working += 1
            most = max(most, working)
            await asyncio.sleep(0.05)
            working -= 1

    await asyncio.gather(*(work_in_vain() for _ in range(4)))
    assert most == 3


async def test_who_waits_goes_on_when_the_first_is_cancelled() -> None:
    remembered: Remembered[int] = Remembered(2)

    async def get(key: str, seconds: float, value: int) -> int:
        async with remembered.hold(key) as found:
            if found is None:
                await asyncio.sleep(seconds)
                remembered.put(key, value)
                return value
            return found

    first = asyncio.create_task(get("a", 60, 1))
    await asyncio.sleep(0)
    others = [asyncio.create_task(get("a", 0, value)) for value in (2, 3)]
    await asyncio.sleep(0)
    first.cancel()
    assert await asyncio.gather(*others) == [2, 3]
    assert [await get(key, 0, value) for key, value in (("b", 4), ("a", 5), ("c", 6), ("a", 7), ("b", 8))] == [
        4, 3, 6, 3, 8,
    ]  # fmt: skip
    off: Remembered[int] = Remembered(0)
    for value in (1, 2):
        async with off.hold("a") as found:
            assert found is None
            off.put("a", value)


async def test_the_source_is_that_of_the_repository(isolation: None, tokenizer: Any) -> None:
    """A record that brings all its files is shown without a look into the sandbox, byte for byte as with one."""
    method = make(tokenizer)
    odd = {"b.py": "b\n", "a/z.py": "z\n", "a.py": "\n", "a-b.py": "é\n", "é.py": "", "tests/t.py": "t", "x.txt": "x"}
    repositories = [draw_record("test", number, "package")["metadata"]["repository"] for number in range(2)]
    for files in (*repositories, odd, {"only.txt": "x"}):
        task = read_task(replace(TASK, metadata={**TASK.metadata, "repository": files}))
        prepared = replace(task, pre_commands="true")
        async with method.make_workspace(task) as workspace:
            await method.start(workspace, prepared)
            assert method.brings_all(task)
            assert not method.brings_all(prepared)
            shown = [list((await method.read_source(workspace, each)).items()) for each in (task, prepared)]
        assert shown[0] == shown[1]
        assert [path for path, _ in shown[0]] == [path for path, _ in shown[1]]


async def test_both_ways_to_call_cases_give_the_same_verdict(isolation: None, tokenizer: Any) -> None:
    """A fork of the program inside, or a Python of its own where commands may have installed packages."""
    record = draw_record("test", 1, "function")
    path, text = next(iter(record["metadata"]["repository"].items()))
    name = record["metadata"]["cases"][0]["function"]
    endings = {
        "": "tests_failed",
        "import os; os._exit(0)\n": "no_report",
        "import sys; sys.stderr.write('x' * 3000000)\n": "tests_failed",
        f"def {name.rpartition('.')[2]}(*given):\n    return given[0] is given\n": "tests_failed",
        "while True: pass\n": "test_timeout",
    }
    for ending, verdict in endings.items():
        files = {**record["metadata"]["repository"], path: text + ending}
        metadata = {**record["metadata"], "repository": files}
        limit_s = 1 if verdict == "test_timeout" else 60
        method = make(tokenizer, f"coding.test_timeout_s={limit_s}", "coding.remember=0")
        for commands in ("", "true"):
            task = Task("t", "q", ("",), metadata={**metadata, "pre_commands": commands})
            graded, _ = await method.grade(task, read_task(task), b"")
            assert graded.verdict == verdict, (ending, commands, graded)
