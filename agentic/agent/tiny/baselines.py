"""The baseline of the `tiny` preset: the same policy without a tool, which can only guess."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentic.agent.config import AgentRecipe
from agentic.agent.rewards import exact
from agentic.agent.tool_loop import run_tool_loop
from core.gateway import AgentMethod, Endpoint, SessionSettings
from core.rollout.method import Method
from core.text.tokenizer import Tokenizer
from core.types import Task


async def answer_at_once(task: Task, endpoint: Endpoint) -> str:
    """Answer without a tool."""
    return await run_tool_loop(endpoint, task.question, [])


def build_without_tool(recipe: AgentRecipe, tokenizer: Tokenizer) -> AgentMethod:
    assert recipe.model.max_model_len is not None, "the recipe has seen to it"
    settings = SessionSettings(max_context=recipe.model.max_model_len)
    return AgentMethod(answer_at_once, exact, tokenizer, settings, max_new_tokens=32)


BASELINES: Mapping[str, Callable[[AgentRecipe, Any], Method]] = {"no-tool": build_without_tool}
