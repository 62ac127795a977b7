"""A plain agent over OpenAI's Chat Completions: it asks, runs the tools that the answer calls, and asks again.

It knows nothing of training. Use it where no framework is wanted. `ask` is one request of it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from core.gateway import Endpoint
from core.text.tool_calls import ToolCall, ToolSchema, check_call


@dataclass(frozen=True, slots=True)
class AgentTool:
    """Holds a function that the model may call, with its description."""

    schema: ToolSchema
    run: Callable[..., Awaitable[str]]


async def run_tool_loop(
    endpoint: Endpoint, conversation: Sequence[Mapping[str, str]], tools: Sequence[AgentTool], system: str = ""
) -> str:
    """Continue a conversation, and return the first answer without a tool call. `system` begins its system message.

    Raises:
        RuntimeError: a request was refused; the message holds the reason.
    """
    messages: list[dict[str, Any]] = [dict(message) for message in conversation]
    if system and messages[0]["role"] == "system":
        messages[0]["content"] = f"{system}\n\n{messages[0]['content']}"
    elif system:
        messages.insert(0, {"role": "system", "content": system})
    async with open_http(endpoint) as http:
        while True:
            message = await ask(http, endpoint, messages, tools)
            if not message.get("tool_calls"):
                return str(message["content"])
            for call in message["tool_calls"]:
                result = await call_tool(tools, call["function"]["name"], call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def open_http(endpoint: Endpoint) -> aiohttp.ClientSession:
    """Return an HTTP session that waits for ever: how long a rollout may take is the recipe's to say."""
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    return aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=None))


async def ask(
    http: aiohttp.ClientSession,
    endpoint: Endpoint,
    messages: list[dict[str, Any]],
    tools: Sequence[AgentTool] = (),
) -> dict[str, Any]:
    """Append the policy's answer to a conversation, and return it. Raises RuntimeError as `run_tool_loop`."""
    body = {"model": endpoint.model, "messages": messages, "tools": [tool.schema.to_openai() for tool in tools]}
    async with http.post(f"{endpoint.openai_url}/chat/completions", json=body) as response:
        reply = await response.json()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {reply['error']['message']}")
    message: dict[str, Any] = reply["choices"][0]["message"]
    messages.append(message)
    return message


async def call_tool(tools: Sequence[AgentTool], name: str, arguments: str) -> str:
    """Return what a tool says, or why it cannot be called like this."""
    call = ToolCall(name, json.loads(arguments))
    if error := check_call(call, [tool.schema for tool in tools]):
        return error.message
    tool = next(tool for tool in tools if tool.schema.name == name)
    return await tool.run(**call.arguments)
