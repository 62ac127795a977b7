"""`func_call`: the agent speaks, acts, or hands its turn to an expert; the environment sees one agent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from agentic.toolorchestra.environment import CallResult, UserReply
from core.rollout.method import RolloutError
from core.text.tool_calls import ToolCall
from core.types import Task
from tests.small_env import SmallEnvironment, SmallEnvironmentFactory, make_task, solution, tasks
from tests.unit.agentic.toolorchestra.conftest import Services, Tell, call

EMPTY = make_task("empty", "empty", 0)


def strip_thinking(step: ToolCall | str) -> str:
    return step if isinstance(step, str) else call(step.name, **step.arguments)


def openai(*calls: ToolCall) -> dict[str, Any]:
    functions = [{"name": c.name, "arguments": json.dumps(dict(c.arguments))} for c in calls]
    return {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": f} for f in functions]}


@pytest.mark.parametrize("context", ["rebuilt", "append_only"])
@pytest.mark.parametrize("task", tasks(6), ids=lambda task: f"{task.task_id}-{task.metadata['kind']}")
async def test_the_solution_scores_1(tell: Tell, task: Task, context: str) -> None:
    story = await tell([strip_thinking(step) for step in solution(task)], task, context=context)
    assert (story.trajectory.reward, story.trajectory.status, story.metrics["malformed"]) == (1.0, "completed", 0)
    assert len(story.trajectory.turns) == 3


@pytest.mark.parametrize("kind", ["abroad", "empty", "stuck"])
async def test_a_dropped_write_and_doing_nothing_score_0(tell: Tell, kind: str) -> None:
    task = make_task("t", kind, 5)
    steps = [strip_thinking(step) for step in solution(task)]
    for texts in ([steps[0], steps[2], "Goodbye."], ["Have a nice day."]):
        story = await tell(texts, task, max_turns=12)
        assert (story.trajectory.reward, story.metrics["answered"]) == (0.0, 1.0)


async def test_an_unfinished_conversation_is_graded_and_not_trained(tell: Tell) -> None:
    look = strip_thinking(solution(EMPTY)[0])
    story = await tell([look], EMPTY, max_turns=3)
    assert (story.trajectory.reward, story.trajectory.status) == (0.0, "truncated")
    assert not any(turn.trained for turn in story.trajectory.turns)


async def test_malformed_calls_are_shown_and_never_reach_the_environment(tell: Tell) -> None:
    look, add, say = map(strip_thinking, solution(EMPTY))
    texts = ["<tool_call>{", call("fly"), look + look.partition("</think>")[2], add, say]
    for context in ("rebuilt", "append_only"):
        story = await tell(texts, EMPTY, context=context)
        assert "was not closed with </tool_call>" in story.prompts[1]
        assert "there is no tool 'fly'" in story.prompts[2]
        assert story.trajectory.reward == 1.0
        assert [turn.trained for turn in story.trajectory.turns] == [False, False, True, True, True]
        roles = [line["role"] for line in story.trajectory.log["lines"]]
        assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant", "user"]


async def test_a_refused_call_is_the_environments_answer(tell: Tell) -> None:
    _, add, say = map(strip_thinking, solution(EMPTY))
    wrong = call("add_data", number="555-0", gigabytes=1)
    story = await tell([wrong, add, say], EMPTY)
    assert "there is no line 555-0" in story.prompts[1]
    assert (story.metrics["tool_refused"], story.metrics["malformed"], story.trajectory.reward) == (1, 0, 1.0)


class Recorded(SmallEnvironment):
    """Keeps what reaches it."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, Any]] = []

    async def user_turn(self, message: str) -> UserReply:
        self.heard.append(("say", message))
        return await super().user_turn(message)

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        self.heard.append((name, dict(arguments)))
        return await super().call_tool(name, arguments)


async def test_a_tool_may_end_the_conversation(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    async def transfer(self: SmallEnvironment, name: str, arguments: Mapping[str, Any]) -> CallResult:
        self._open()
        self._done = True
        return CallResult("transferred", done=True)

    monkeypatch.setattr(SmallEnvironment, "call_tool", transfer)
    look = strip_thinking(solution(EMPTY)[0])
    story = await tell([look + look.partition("</think>")[2]], EMPTY)
    assert (len(story.trajectory.turns), story.metrics["answered"], story.trajectory.reward) == (1, 1.0, 0.0)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    made: list[Recorded] = []

    def open_(self: SmallEnvironmentFactory, task: Task, ask: Any) -> Recorded:
        made.append(Recorded())
        return made[-1]

    monkeypatch.setattr(SmallEnvironmentFactory, "open", open_)
    return made


@pytest.mark.parametrize("context", ["rebuilt", "append_only"])
async def test_an_experts_turn_is_the_agents_to_the_environment(
    tell: Tell, services: Services, recorded: list[Recorded], context: str
) -> None:
    look, add, say = solution(EMPTY)
    assert isinstance(look, ToolCall)
    assert isinstance(add, ToolCall)
    assert isinstance(say, str)
    # The template of the last may open the thought: then a service shows its end alone.
    thought = "<think>now talk" if context == "rebuilt" else "now talk"
    replies = iter([openai(look), openai(add), f"{thought}</think>{say}"])
    services.scripts["clever"] = lambda messages: next(replies)
    story = await tell([call("call_expert", expert="expert-1")], EMPTY, context=context)
    alone = await tell([strip_thinking(look), strip_thinking(add), say], EMPTY, context=context)
    assert recorded[0].heard == recorded[1].heard
    assert story.trajectory.log["lines"] == alone.trajectory.log["lines"]
    assert (story.trajectory.reward, story.metrics["calls_expert-1"], alone.metrics["calls_expert-1"]) == (1.0, 3, 0)
    assert story.metrics["cost"] == pytest.approx(3 * (1000 * 10 + 100 * 30) / 1e6)
    last = services.asked[2][1]
    roles = [message["role"] for message in last["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert last["messages"][3]["tool_call_id"] == last["messages"][2]["tool_calls"][0]["id"]
    names = [tool["function"]["name"] for tool in last["tools"]]
    assert "add_data" in names
    assert "call_expert" not in names
    if context == "append_only":
        assert "expert-1 called" in story.prompts[1]


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (500, "expert_engine"),
        ("<tool_call>{", "expert_unclosed_call"),
        (openai(ToolCall("fly", {})), "expert_unknown_tool"),
        (openai(ToolCall("call_expert", {"expert": "expert-1"})), "expert_unknown_tool"),
        ({"tool_calls": [{"function": {"name": "add_data", "arguments": "{number: 1}"}}]}, "expert_not_json"),
    ],
)
async def test_an_expert_that_cannot_take_the_turn_is_told_and_counted(
    tell: Tell, services: Services, recorded: list[Recorded], reply: Any, kind: str
) -> None:
    services.scripts["cheap"] = lambda messages: reply
    texts = [call("call_expert", expert="expert-2"), *map(strip_thinking, solution(EMPTY))]
    for context in ("rebuilt", "append_only"):
        story = await tell(texts, EMPTY, context=context)
        assert story.metrics[kind] == 1
        assert "expert-2 could not take the turn" in story.prompts[1]
        assert story.trajectory.turns[0].trained  # the orchestrator's own call was well formed
        assert story.trajectory.reward == 1.0
        assert len(recorded[-1].heard) == 3


async def test_a_long_dialogue_is_cut_in_its_middle(tell: Tell) -> None:
    look = strip_thinking(solution(EMPTY)[0])
    shown = await tell([look], EMPTY, max_turns=1)
    room = 500 + len(shown.trajectory.turns[0].prompt_ids)  # policy, tools and the first message, and what comes after
    budget = {"attempts": 500, "code": 500, "total": room}
    for context in ("rebuilt", "append_only"):
        story = await tell([look], EMPTY, context=context, max_turns=12, budget=budget)
        lengths = [len(turn.prompt_ids) for turn in story.trajectory.turns]
        assert lengths[0] < max(lengths) < room + 250  # of the template's own
        assert all("My number is" in prompt for prompt in story.prompts)
        assert (story.metrics["drift"] > 0) == (context == "append_only")


async def test_the_environment_must_be_named(tell: Tell) -> None:
    with pytest.raises(RolloutError, match=r"set toolorchestra\.environment"):
        await tell(["hello"], EMPTY, environment=None)
