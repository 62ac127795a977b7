"""The agent of the `tiny` preset: a loop over OpenAI's Chat Completions with one tool."""

from __future__ import annotations

from agentic.agent.tiny.world import LOOK_UP, look_up
from agentic.agent.tool_loop import AgentTool, run_tool_loop
from core.gateway import Endpoint
from core.types import Task


async def run(task: Task, endpoint: Endpoint) -> str:
    """Answer the question, with the tool if the model wants it."""

    async def call_look_up(thing: str) -> str:
        return look_up(thing, task.metadata["world"])

    return await run_tool_loop(endpoint, task.question, [AgentTool(LOOK_UP, call_look_up)])
