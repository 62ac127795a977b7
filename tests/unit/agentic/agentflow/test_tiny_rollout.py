"""The tiny preset's method with scripted planners: the tools do run, and no shortcut earns the reward."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from agentic.agentflow.config import AgentFlowRecipe
from agentic.agentflow.memory import Memory, Step
from agentic.agentflow.rollout import SPEC, AgentFlow, build
from agentic.agentflow.tiny import scripted_roles as scripted
from agentic.agentflow.tiny import start_model
from agentic.agentflow.tiny.baselines import BASELINES, FixedToolPlanner
from agentic.agentflow.tiny.demonstrations import ANSWER, CarelessAnnotator, demonstrate
from agentic.agentflow.tiny.questions import CODER, GENERATOR, ToyQuestion
from agentic.agentflow.tiny.scripted_roles import ScriptedRole, give_verdict, is_result
from agentic.agentflow.tiny.tasks import generate
from core.policy.base import PolicyError, Roles
from core.rollout.runner import Runner
from core.tools.sandbox import Sandbox, SandboxUnavailable
from core.types import Sampling, Task, Trajectory

KIND_OF_ONE_TOOL = {"always-python-coder": "compute", "always-base-generator": "look_up"}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return start_model.train_tokenizer()


@pytest.fixture(scope="module")
def recipe() -> AgentFlowRecipe:
    try:
        Sandbox()
    except SandboxUnavailable as problem:
        pytest.skip(f"no isolation here: {problem}")
    return SPEC.load("tiny")


def boxes_the_last_result(message: str) -> str:
    results = [line.rpartition(" = ")[2] for line in message.partition("<memory>")[2].splitlines()]
    return ANSWER.format(answer=next((r for r in reversed(results) if is_result(r)), "unknown"))


def planner(decide: Any) -> Any:
    """A policy that boxes the last result, and whose next step is decide(question, results by sub-goal)."""

    def reply(message: str) -> str:
        if message.startswith("<final>"):
            return boxes_the_last_result(message)
        question, _, memory = message.removeprefix("<step>").partition("<analysis><memory>")
        lines = [line.partition(" : ")[2].partition(" = ") for line in memory.splitlines()]
        return str(decide(question, {sub_goal: result for sub_goal, _, result in lines if is_result(result)}))

    return reply


def right(question: str, results: dict[str, str]) -> str:
    tool, sub_goal = ToyQuestion.read(question).next_step(results) or ("", "")
    return f" {tool} : {sub_goal}"


async def run(method: AgentFlow, recipe: AgentFlowRecipe, tokenizer: Any, reply: Any, tasks: list[Task]) -> list[Any]:
    makers = {"executor": scripted.executor, "verifier": scripted.verifier, "generator": scripted.generator}
    roles = {name: make(recipe, tokenizer) for name, make in makers.items()} | {"policy": ScriptedRole(tokenizer, reply)}
    groups = await Runner(method, Roles(roles), concurrency=32, deadline_s=60).run_groups(tasks, 1, Sampling(), 0)
    await method.close()
    assert not [t.log for (t,) in groups if t.status == "failed"]
    return [trajectory for (trajectory,) in groups]


def score(trajectories: list[Trajectory]) -> float:
    return sum(t.reward or 0 for t in trajectories) / len(trajectories)


async def test_the_right_steps_earn_every_reward(recipe, tokenizer):
    tasks = generate("test", 24)
    trajectories = await run(build(recipe, tokenizer), recipe, tokenizer, planner(right), tasks)
    assert score(trajectories) == 1.0
    for task, trajectory in zip(tasks, trajectories, strict=True):
        assert trajectory.metrics["steps"] == ToyQuestion.read(task.question).needs
        assert {turn.role for turn in trajectory.turns if turn.trained} == {"planner.next_step", "planner.final"}
        commands = [step for step in trajectory.log["steps"] if step["tool"] == CODER]
        assert all(step["result"] == str(eval(step["command"])) for step in commands)


async def test_answers_of_other_tasks_earn_none(recipe, tokenizer):
    tasks = generate("test", 24)
    others = [replace(t, answers=o.answers) for t, o in zip(tasks, tasks[1:] + tasks[:1], strict=True)]
    assert score(await run(build(recipe, tokenizer), recipe, tokenizer, planner(right), others)) <= 1 / 24


@pytest.mark.parametrize("variant", KIND_OF_ONE_TOOL)
async def test_one_tool_answers_one_kind(recipe, tokenizer, variant):
    tasks = generate("test", 24)
    trajectories = await run(BASELINES[variant](recipe, tokenizer), recipe, tokenizer, planner(right), tasks)
    answered = {task.metadata["kind"] for task, t in zip(tasks, trajectories, strict=True) if t.reward}
    assert answered == {KIND_OF_ONE_TOOL[variant]}
    assert not [turn for t in trajectories for turn in t.turns if turn.role == "planner.next_step"]


async def test_without_tools_there_is_one_turn(recipe, tokenizer):
    (trajectory,) = await run(
        BASELINES["no-tool"](recipe, tokenizer), recipe, tokenizer, planner(right), generate("test", 1)
    )
    assert [turn.role for turn in trajectory.turns] == ["planner.final"]
    assert trajectory.reward == 0


async def test_a_step_too_many_is_wrong(recipe, tokenizer):
    """The verifier counts results, so a step that was not needed takes the place of one that was."""

    def repeats(question: str, results: dict[str, str]) -> str:
        return right(question, {})

    tasks = [task for task in generate("test", 24) if ToyQuestion.read(task.question).needs > 1][:8]
    trajectories = await run(build(recipe, tokenizer), recipe, tokenizer, planner(repeats), tasks)
    assert score(trajectories) == 0


async def test_malformed_steps_and_failing_tools_are_counted(recipe, tokenizer):
    task = generate("test", 1)[0]
    said = iter([" no colon", " python_coder : price of lamp", " crystal_ball : all"])
    reply = planner(lambda question, results: next(said))
    (trajectory,) = await run(build(recipe, tokenizer), recipe, tokenizer, reply, [task])
    assert (trajectory.metrics["parse_errors"], trajectory.metrics["tool_errors"]) == (1, 2)
    assert trajectory.reward == 0


@pytest.mark.parametrize(
    ("memory", "says"),
    [
        ((), "CONTINUE"),
        ((Step("ok", GENERATOR, "price of lamp", result="30"),), "CONTINUE"),
        ((Step("ok", GENERATOR, "price of lamp", result="30"), Step("error", CODER, "x")), "CONTINUE"),
        ((Step("ok", GENERATOR, "30 * 2", result="unknown"),) * 2, "CONTINUE"),
        ((Step("ok", CODER, "1 * 1", result="1"), Step("ok", CODER, "2 - 9", result="-7")), "STOP"),
    ],
)
def test_the_verifier_counts_results_and_does_not_judge_them(memory, says):
    rendered = Memory(tuple(memory)).render("compact")
    assert give_verdict(f"<verify>What is the price of lamp times 2?<memory>{rendered}") == says


async def test_the_verifier_refuses_questions_that_it_cannot_read(recipe, tokenizer):
    with pytest.raises(PolicyError, match="not a question"):
        await scripted.verifier(recipe, tokenizer).generate(tokenizer.encode("<verify>Why?<memory>"), Sampling())


def test_the_annotators_faults_have_their_frequencies():
    rng, first = Random(0), []
    for _ in range(3000):
        turns = [turn for turn in demonstrate(rng, CarelessAnnotator(0.35, 0.4, 0.05)) if turn.role == "planner.next_step"]
        first.append((ToyQuestion.read(turns[0].question), turns[0].completion))
    named = [(question, text) for question, text in first if " : " in text]
    assert 1 - len(named) / len(first) == pytest.approx(0.05, abs=0.02)
    look_ups = [text.split(" : ") for question, text in named if question.facts and not question.numbers]
    assert sum(tool.strip() == CODER for tool, _ in look_ups) / len(look_ups) == pytest.approx(0.35, abs=0.05)
    skippable = [(q, text) for q, text in named if q.facts and q.numbers]
    skipped = [text for q, text in skippable if q.facts[0] not in text]
    assert len(skipped) / len(skippable) == pytest.approx(0.4, abs=0.05)


def test_no_fault_no_difference():
    rng = Random(0)
    for _ in range(100):
        turns = list(demonstrate(rng, CarelessAnnotator(0, 0, 0)))
        results: dict[str, str] = {}
        for turn in turns:
            lines = [line.partition(" : ")[2].partition(" = ") for line in turn.memory.splitlines()]
            results = {sub_goal: result for sub_goal, _, result in lines}
            if turn.role == "planner.next_step":
                assert turn.completion == right(turn.question, results)
        assert turns[-1].completion == ANSWER.format(answer=list(results.values())[-1])


def test_given_tools_draws_both(recipe, tokenizer):
    method = BASELINES["random-tool"](recipe, tokenizer)
    assert isinstance(method, FixedToolPlanner)
    assert method.tools == (CODER, GENERATOR)
