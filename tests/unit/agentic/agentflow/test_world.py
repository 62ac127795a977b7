"""The `tiny` preset: splits share nothing, answers are right, demonstrations tell no fact, no shortcut is rewarded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any

import pytest

from agentic.agentflow import scripted_roles
from agentic.agentflow.config import AgentFlowRecipe
from agentic.agentflow.rollout import SPEC, build
from agentic.agentflow.scripted_roles import ScriptedRole
from agentic.agentflow.world import (
    ANSWER,
    CODER,
    ENTITIES,
    UNKNOWN,
    WORLD,
    ToyQuestion,
    compute,
    draw_demonstration,
    is_result,
    list_steps,
    look_up,
    solve,
)
from core.policy.base import Roles
from core.rollout.runner import Runner
from core.types import Sampling, Task, Trajectory
from core.worlds import SPLITS

Results = dict[str, str]


def test_no_fact_and_no_question_is_in_two_splits_nor_in_a_demonstration_of_another() -> None:
    facts: dict[str, set[str]] = {}
    for split, count in zip(SPLITS, (2048, 64, 256), strict=True):
        tasks = WORLD.draw_tasks(split, count)
        questions = {task.question for task in tasks}
        solutions = [solve(ToyQuestion.read(question)) for question in questions]
        facts[split] = questions | {step for steps in solutions for step in steps if look_up(step) != UNKNOWN}
    assert not any(one & other for one, other in combinations(facts.values(), 2))
    rng = Random(1)
    asked = {draw_demonstration(rng).question for _ in range(1000)}
    assert len(asked) > 800
    assert not asked & (facts["dev"] | facts["test"])


def read_memory(memory: str) -> Results:
    lines = [line.partition(" : ")[2].partition(" = ") for line in memory.splitlines()]
    return {sub_goal: result for sub_goal, _, result in lines}


def test_a_demonstration_does_not_tell_what_the_facts_are() -> None:
    rng, right = Random(1), []
    for _ in range(3000):
        results = read_memory(draw_demonstration(rng).memory)
        right += [look_up(goal) == result for goal, result in results.items() if result in ENTITIES]
    assert len(right) > 50
    assert sum(right) / len(right) < 0.1  # one in 62 by chance


def test_every_demonstration_can_be_done_and_where_there_is_a_choice_chance_makes_it() -> None:
    rng = Random(0)
    choices: list[tuple[bool, int]] = []  # whether the right step was shown, and among how many
    for _ in range(4000):
        turn = draw_demonstration(rng)
        question, results = ToyQuestion.read(turn.question), read_memory(turn.memory)
        if turn.role == "planner.final":
            assert question.next_step(results) is None
            assert turn.completion == ANSWER.format(answer=list(results.values())[-1])
            continue
        tool, _, sub_goal = turn.completion.strip().partition(" : ")
        assert sub_goal not in results
        left, *rest = sub_goal.split()
        if tool == CODER:
            assert compute(sub_goal)
            assert {left, rest[-1]} <= {*question.numbers, *results.values()}
        else:
            assert sub_goal in question.facts or (left == "item" and rest[0] in (*question.numbers, *results.values()))
        choices.append((question.next_step(results) == (tool, sub_goal), len(list_steps(rng, question, results))))
    for number, least, most in ((1, 0.87, 1.0), (2, 0.45, 0.65), (3, 0.2, 0.45)):
        shown = [right for right, among in choices if among == number]
        assert len(shown) > 100
        assert least < sum(shown) / len(shown) <= most, number


@pytest.fixture
def recipe(isolation: None) -> Any:
    return SPEC.load("tiny")


def right_step(question: str, results: Results) -> str:
    tool, sub_goal = ToyQuestion.read(question).next_step(results) or ("", "")
    return f" {tool} : {sub_goal}"


def planner(decide: Callable[[str, Results], str]) -> Callable[[str], str]:
    """A policy that boxes the last result; decide(question, results by sub-goal) is its next step."""

    def reply(message: str) -> str:
        question, _, memory = message.removeprefix("<step>").partition("<analysis><memory>")
        if message.startswith("<final>"):
            results = [line.rpartition(" = ")[2] for line in memory.splitlines()]
            return ANSWER.format(answer=next((r for r in reversed(results) if is_result(r)), "unknown"))
        lines = [line.partition(" : ")[2].partition(" = ") for line in memory.splitlines()]
        return decide(question, {sub_goal: result for sub_goal, _, result in lines if is_result(result)})

    return reply


async def run(
    method: Any, recipe: AgentFlowRecipe, tokenizer: Any, tasks: list[Task], decide: Any = right_step
) -> list[Trajectory]:
    makers = {name: getattr(scripted_roles, name) for name in ("executor", "verifier", "generator")}
    roles = {name: make(recipe, tokenizer) for name, make in makers.items()}
    roles["policy"] = ScriptedRole(tokenizer, planner(decide))
    groups = await Runner(method, Roles(roles), concurrency=32, deadline_s=60).run_groups(tasks, 1, Sampling(), 0)
    await method.close()
    assert not [t.log for (t,) in groups if t.status == "failed"]
    return [trajectory for (trajectory,) in groups]


def score(trajectories: list[Trajectory]) -> float:
    return sum(t.reward or 0 for t in trajectories) / len(trajectories)


async def test_the_right_steps_earn_every_reward_and_none_with_answers_of_other_tasks(
    recipe: AgentFlowRecipe, tokenizer: Any
) -> None:
    tasks = WORLD.draw_tasks("test", 24)
    trajectories = await run(build(recipe, tokenizer), recipe, tokenizer, tasks)
    assert score(trajectories) == 1.0
    for task, trajectory in zip(tasks, trajectories, strict=True):
        assert trajectory.metrics["steps"] == ToyQuestion.read(task.question).needs
        assert {turn.role for turn in trajectory.turns if turn.trained} == {"planner.next_step", "planner.final"}
        commands = [step for step in trajectory.log["steps"] if step["tool"] == CODER]
        assert all(step["result"] == str(eval(step["command"])) for step in commands)
    others = [replace(t, answers=o.answers) for t, o in zip(tasks, tasks[1:] + tasks[:1], strict=True)]
    assert score(await run(build(recipe, tokenizer), recipe, tokenizer, others)) <= 1 / 24


@pytest.mark.parametrize(
    ("variant", "kinds"),
    [("always-python-coder", {"compute"}), ("always-base-generator", {"look_up"}), ("no-tool", set[str]())],
)
async def test_a_planner_that_cannot_choose_answers_one_kind_at_most(
    recipe: AgentFlowRecipe, tokenizer: Any, variant: str, kinds: set[str]
) -> None:
    tasks = WORLD.draw_tasks("test", 24)
    trajectories = await run(WORLD.baselines[variant](recipe, tokenizer), recipe, tokenizer, tasks)
    assert {task.metadata["kind"] for task, t in zip(tasks, trajectories, strict=True) if t.reward} == kinds
    assert not [turn for t in trajectories for turn in t.turns if turn.role == "planner.next_step"]
