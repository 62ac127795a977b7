"""Plays tau2's user without an LLM, for tests and for training runs that have no simulator.

The words of these users are fixed, so they do not measure an agent. Evaluations use an LLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.types import Task

STOP = "###STOP###"


class ScriptedUser:
    """A Responder that follows the reference solution of the task.

    It first says what it wants. At each message of the agent it takes the user's next action in the solution, and
    reports the result. When no action is left it hangs up.
    """

    def __init__(self, task: Task):
        criteria = task.metadata["criteria"] or {}
        self._request = task.question
        self._actions = [action for action in criteria.get("actions") or () if action["requestor"] == "user"]

    async def __call__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        own = [message for message in messages if message["role"] == "assistant"]
        if not own:
            return {"content": self._request}
        if messages[-1]["role"] == "tool":
            return {"content": f"I did it. It says: {messages[-1]['content']}"}
        done = sum(len(message.get("tool_calls") or ()) for message in own)
        if done == len(self._actions):
            return {"content": STOP}
        action = self._actions[done]
        call = {"id": f"user_{done + 1}", "name": action["name"], "arguments": action["arguments"]}
        return {"content": None, "tool_calls": [call]}


class HangUpUser:
    """A Responder that says what it wants and hangs up at the agent's first message, for agents that do nothing."""

    def __init__(self, task: Task):
        self._request = task.question

    async def __call__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        spoke = any(message["role"] == "assistant" for message in messages)
        return {"content": STOP if spoke else self._request}
