"""The small world: its grade is that of its state, whatever was said."""

from __future__ import annotations

import pytest

from agentic.toolorchestra.environment import EnvironmentFault
from core.text.tool_calls import ToolCall
from core.types import Task
from tests.small_env import KINDS, SmallEnvironment, make_task, solution, tasks

TASKS = tasks(30)


async def play(task: Task, steps: list[ToolCall | str]) -> SmallEnvironment:
    world = SmallEnvironment()
    await world.reset(task)
    for step in steps:
        if isinstance(step, ToolCall):
            assert not (await world.call_tool(step.name, step.arguments)).error
        else:
            await world.user_turn(step)
    return world


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task_id)
async def test_solved_dropped_and_untouched(task: Task) -> None:
    steps = list(solution(task))
    assert await (await play(task, steps)).evaluate() == 1.0
    assert await (await play(task, steps)).evaluate() == 1.0  # the task itself is not changed by playing it
    assert await (await play(task, [steps[0], steps[2]])).evaluate() == 0.0
    assert await (await play(task, [])).evaluate() == 0.0


async def test_a_wrong_and_a_needless_write_cost_the_grade() -> None:
    task = make_task("t", "empty", 1)
    number, wanted = task.metadata["number"], task.metadata["wanted"]
    too_much = ToolCall("add_data", {"number": number, "gigabytes": wanted + 1})
    assert await (await play(task, [too_much, "Try again."])).evaluate() == 0.0
    needless = ToolCall("set_roaming", {"number": number, "on": True})
    assert await (await play(task, [needless, *solution(task)])).evaluate() == 0.0
    elsewhere = ToolCall("add_data", {"number": "555-99999", "gigabytes": 1})
    assert await (await play(task, [elsewhere, *solution(task)])).evaluate() == 0.0


async def test_the_phone_is_the_users_and_the_user_follows_the_script() -> None:
    task = make_task("t", "abroad", 0)
    world = await play(task, list(solution(task))[:2])
    said = await world.user_turn("Please leave airplane mode.")
    assert said.done
    assert said.text == "Airplane mode is off now. Thank you, it works now."
    impatient = SmallEnvironment(patience=2)
    await impatient.reset(task)
    assert not (await impatient.user_turn("Hello?")).done
    assert (await impatient.user_turn("Hello?")).done


async def test_refusals_are_results() -> None:
    task = make_task("t", "empty", 0)
    world = SmallEnvironment()
    await world.reset(task)
    for name, arguments in (
        ("fly", {}),
        ("get_line", {}),
        ("get_line", {"number": 5}),
        ("get_line", {"number": "555-0"}),
        ("add_data", {"number": task.metadata["number"], "gigabytes": "3"}),
    ):
        result = await world.call_tool(name, arguments)
        assert result.error
        assert result.text.startswith("Error: ")


async def test_faults_of_the_caller_have_names() -> None:
    world = SmallEnvironment()
    for broken in (world.evaluate(), world.user_turn("hi"), world.call_tool("get_line", {})):
        with pytest.raises(EnvironmentFault) as caught:
            await broken
        assert caught.value.kind == "env_protocol"
    with pytest.raises(EnvironmentFault) as caught:
        await world.reset(Task("x", "?", ()))
    assert caught.value.kind == "env_task"


def test_tasks_are_the_same_again_and_of_all_kinds() -> None:
    assert tasks(9, 4) == tasks(9, 4) != tasks(9, 5)
    assert {task.metadata["kind"] for task in TASKS} == set(KINDS)
