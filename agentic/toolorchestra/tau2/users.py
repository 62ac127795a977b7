"""Who plays tau2's user without an LLM: one that follows the task's reference solution, for tests and for training runs
that have no simulator. Its words are fixed, so it is no measure of an agent; evaluations have an LLM for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.types import Task

STOP = "###STOP###"


class ScriptedUser:
    """A Speaker. It tells what it wants; at each of the agent's messages it does the next thing that the reference
    solution has the user do, and reports the result; when nothing is left to do it hangs up."""

    def __init__(self, task: Task):
        criteria = task.metadata["criteria"] or {}
        self._wish = task.question
        self._actions = [action for action in criteria.get("actions") or () if action["requestor"] == "user"]

    async def __call__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        own = [message for message in messages if message["role"] == "assistant"]
        if not own:
            return {"content": self._wish}
        if messages[-1]["role"] == "tool":
            return {"content": f"I did it. It says: {messages[-1]['content']}"}
        done = sum(len(message.get("tool_calls") or ()) for message in own)
        if done == len(self._actions):
            return {"content": STOP}
        action = self._actions[done]
        call = {"id": f"user_{done + 1}", "name": action["name"], "arguments": action["arguments"]}
        return {"content": None, "tool_calls": [call]}


class HangsUp:
    """A Speaker that tells what it wants and is gone at the agent's first words: for agents that do nothing."""

    def __init__(self, task: Task):
        self._wish = task.question

    async def __call__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        spoke = any(message["role"] == "assistant" for message in messages)
        return {"content": STOP if spoke else self._wish}
