"""A plain agent over OpenAI's Chat Completions: it asks, runs the tools that the answer calls, and asks again.

It needs no package but an HTTP client and knows nothing of training. Use it where no framework is wanted.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from core.gateway import Endpoint
from core.text.tool_calls import ToolCall, ToolSchema, check_call


class LimitReached(RuntimeError):
    """Says that the session has had all that it may have: turns, calls or context."""


@dataclass(frozen=True, slots=True)
class AgentTool:
    """Holds a function that the model may call, with its description."""

    schema: ToolSchema
    run: Callable[..., Awaitable[str]]


async def run_tool_loop(
    endpoint: Endpoint,
    conversation: Sequence[Mapping[str, str]],
    tools: Sequence[AgentTool],
    system: str = "",
    follow: Callable[[str], Awaitable[str]] | None = None,
) -> str:
    """Continue a conversation, and return the first answer without a tool call. `system` begins its system message.

    With `follow` it goes on: that maps such an answer to the next message of the user, or raises to end it.

    Raises:
        LimitReached: the session has had all that it may have.
        RuntimeError: a request was refused for another reason, which the message holds.
    """
    messages: list[dict[str, Any]] = [dict(message) for message in conversation]
    if system and messages[0]["role"] == "system":
        messages[0]["content"] = f"{system}\n\n{messages[0]['content']}"
    elif system:
        messages.insert(0, {"role": "system", "content": system})
    shown = [tool.schema.to_openai() for tool in tools]
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    # How long a rollout may take is the recipe's to say.
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=None)) as http:
        while True:
            body = {"model": endpoint.model, "messages": messages, "tools": shown}
            async with http.post(f"{endpoint.openai_url}/chat/completions", json=body) as response:
                reply = await response.json()
                if response.status != 200:
                    at_limit = endpoint.session is not None and endpoint.session.reached_limit
                    refused = LimitReached if at_limit else RuntimeError
                    raise refused(f"status {response.status}: {reply['error']['message']}")
            message = reply["choices"][0]["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                if follow is None:
                    return str(message["content"])
                messages.append({"role": "user", "content": await follow(str(message["content"]))})
                continue
            for call in message["tool_calls"]:
                result = await call_tool(tools, call["function"]["name"], call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


async def call_tool(tools: Sequence[AgentTool], name: str, arguments: str) -> str:
    """Return what a tool says, or why it cannot be called like this."""
    call = ToolCall(name, json.loads(arguments))
    if error := check_call(call, [tool.schema for tool in tools]):
        return error.message
    tool = next(tool for tool in tools if tool.schema.name == name)
    return await tool.run(**call.arguments)
