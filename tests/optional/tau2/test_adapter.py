"""The real tau2-bench through our adapter: its own solutions score 1, what leaves out a part of them scores 0."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from agentic.toolorchestra.environment import EnvironmentFault
from agentic.toolorchestra.tau2.client import Workers
from agentic.toolorchestra.tau2.environment import Tau2Environment, tau2_tasks
from agentic.toolorchestra.tau2.users import ScriptedUser
from benchmarks.tau2.protocols import DoNothing
from core.policy.base import Roles
from core.types import Sampling, Task

from .play import PlayedConversation, replay, solution, without_action

pytestmark = [pytest.mark.optional, pytest.mark.timeout(1800)]
TASKS = {"telecom": 114, "retail": 40, "airline": 10}
Solved = Callable[[str], Awaitable[dict[str, tuple[Task, PlayedConversation]]]]


@pytest.fixture(scope="module")
def solved(tau2: Workers) -> Solved:
    """Task -> its solution, played; the first TASKS of a domain."""
    found: dict[str, dict[str, tuple[Task, PlayedConversation]]] = {}

    async def play(domain: str) -> dict[str, tuple[Task, PlayedConversation]]:
        if domain not in found:
            tasks = (await tau2_tasks(tau2, domain))[: TASKS[domain]]
            found[domain] = {task.task_id: (task, await replay(tau2, task)) for task in tasks}
        return found[domain]

    return play


@pytest.mark.parametrize("domain", TASKS)
async def test_solutions_score_one(solved: Solved, domain: str) -> None:
    scores = {name: played.reward for name, (_, played) in (await solved(domain)).items()}
    assert len(scores) == TASKS[domain]
    assert {name: score for name, score in scores.items() if score != 1.0} == {}


async def test_telecom_solutions_score_one_without_a_user(tau2: Workers) -> None:
    tasks = await tau2_tasks(tau2, "telecom", solo=True)
    scores = [(await replay(tau2, task)).reward for task in tasks[::6]]
    assert scores == [1.0] * 19


@pytest.mark.parametrize(("domain", "step"), [("telecom", 3), ("retail", 4), ("airline", 1)])
async def test_without_the_last_write_they_score_zero(tau2: Workers, solved: Solved, domain: str, step: int) -> None:
    writing = [(task, played) for task, played in (await solved(domain)).values() if played.writes]
    chosen = writing[::step]
    assert chosen
    scores = {
        task.task_id: (await replay(tau2, without_action(task, played.writes[-1]))).reward for task, played in chosen
    }
    assert {name: score for name, score in scores.items() if score != 0.0} == {}


@pytest.mark.parametrize(("domain", "count", "total"), [("telecom", 0, 114), ("retail", 11, 114), ("airline", 23, 50)])
async def test_doing_nothing_scores_what_it_does_upstream(tau2: Workers, domain: str, count: int, total: int) -> None:
    tasks = await tau2_tasks(tau2, domain)
    done = [await DoNothing(tau2).rollout(task, Roles({}), Sampling()) for task in tasks]
    assert (sum(each.reward or 0.0 for each in done), len(done)) == (count, total)


@pytest.mark.parametrize("domain", TASKS)
async def test_two_runs_are_equal(tau2: Workers, solved: Solved, domain: str) -> None:
    for task, played in list((await solved(domain)).values())[::20]:
        assert (await replay(tau2, task)).messages == played.messages


async def test_a_conversation_that_is_broken_off_scores_zero_and_is_recorded(tau2: Workers) -> None:
    task = (await tau2_tasks(tau2, "telecom"))[0]
    environment = Tau2Environment(tau2, user=ScriptedUser(task))
    await environment.reset(task)
    assert await environment.evaluate() == 0.0
    assert environment.simulation is not None
    assert environment.simulation["termination_reason"] == "max_steps"
    assert len(environment.simulation["messages"]) == 2
    await environment.close()


async def test_limits_and_errors_are_tau2s_own(tau2: Workers) -> None:
    task = (await tau2_tasks(tau2, "telecom"))[0]
    environment = Tau2Environment(tau2, user=ScriptedUser(task), max_errors=2)
    await environment.reset(task)
    first = await environment.call_tool("no_such_tool", {})
    assert (first.error, first.done) == (True, False)
    assert (await environment.call_tool("no_such_tool", {})).done
    assert await environment.evaluate() == 0.0
    with pytest.raises(EnvironmentFault, match="has ended"):
        await environment.user_turn("Hello?")
    await environment.close()


async def test_the_judge_of_assertions_is_asked(tau2: Workers) -> None:
    tasks = await tau2_tasks(tau2, "retail")
    task = next(t for t in tasks if t.metadata["criteria"]["nl_assertions"] and not solution(t)[1:])
    asked: list[str] = []

    async def judge(messages: list[dict[str, str]], tools: object) -> dict[str, str]:
        asked.append(messages[-1]["content"])
        return {"content": '{"results": [{"expectedOutcome": "x", "reasoning": "y", "metExpectation": false}]}'}

    for speaker, expected in ((judge, 0.0), (None, 1.0)):
        environment = Tau2Environment(tau2, user=ScriptedUser(task), judge=speaker)  # type: ignore[arg-type]
        await environment.reset(task)
        for action in solution(task):
            await environment.call_tool(action["name"], action["arguments"])
        await environment.user_turn("That is done.")
        assert await environment.evaluate() == expected
        assert environment.simulation is not None
        assert environment.simulation["info"] == {"assertions_not_judged": speaker is None}
        await environment.close()
    assert len(asked) == 1
