"""The clients of the gateway's benchmark: conversations in each protocol, held in a process of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

import aiohttp
import numpy as np

WORDS = "the horse stands in a stable near the river and eats hay while people count what they see every day".split()
QUESTION = " ".join(WORDS * 20)
RESULT = " ".join(WORDS * 5)
TOOLS = 10
BLOCK = 10
"""The turns whose mean is one number: the first ones of a conversation, those in its middle, and the last ones."""

CLOCKS, DONE = "clocks", "done"

CpuTimes = np.ndarray
"""Holds CPU time as a whole, and that beside the tokenizer."""
ReadClocks = Callable[[], CpuTimes]
Client = Callable[..., Awaitable[Any]]
"""Gets the gateway's URL, a function that reads the gateway's clocks, and what it needs itself."""


class Dialogue(Protocol):
    """Holds one conversation as a client keeps it: `body` is the next request."""

    path: str
    body: dict[str, Any]

    def extend(self, reply: dict[str, Any]) -> None:
        """Append an answer and the results of its calls."""
        ...


class ChatDialogue:
    path = "/v1/chat/completions"

    def __init__(self) -> None:
        tools = [{"type": "function", "function": tool} for tool in make_tools("parameters")]
        self.body: dict[str, Any] = {"model": "policy", "tools": tools}
        self.body["messages"] = [{"role": "user", "content": QUESTION}]

    def extend(self, reply: dict[str, Any]) -> None:
        message = reply["choices"][0]["message"]
        results = [{"role": "tool", "tool_call_id": c["id"], "content": RESULT} for c in message["tool_calls"]]
        self.body["messages"] += [message, *results]


class ResponsesDialogue:
    path = "/v1/responses"

    def __init__(self) -> None:
        tools = [{"type": "function", **tool} for tool in make_tools("parameters")]
        self.body: dict[str, Any] = {
            "model": "policy",
            "tools": tools,
            "input": [{"role": "user", "content": QUESTION}],
        }

    def extend(self, reply: dict[str, Any]) -> None:
        calls = [item for item in reply["output"] if item["type"] == "function_call"]
        results = [{"type": "function_call_output", "call_id": c["call_id"], "output": RESULT} for c in calls]
        self.body["input"] += [*reply["output"], *results]


class AnthropicDialogue:
    path = "/v1/messages"

    def __init__(self) -> None:
        self.body: dict[str, Any] = {"model": "policy", "tools": make_tools("input_schema"), "max_tokens": 1000}
        self.body["messages"] = [{"role": "user", "content": QUESTION}]

    def extend(self, reply: dict[str, Any]) -> None:
        calls = [block for block in reply["content"] if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": c["id"], "content": RESULT} for c in calls]
        self.body["messages"] += [
            {"role": "assistant", "content": reply["content"]},
            {"role": "user", "content": results},
        ]


DIALOGUES: dict[str, Callable[[], Dialogue]] = {
    "chat": ChatDialogue,
    "responses": ResponsesDialogue,
    "anthropic": AnthropicDialogue,
}


def make_tools(schema: str) -> list[dict[str, Any]]:
    """Describe the tools, as large as those of a coding agent."""
    properties = {name: {"type": "string", "description": " ".join(WORDS)} for name in ("query", "path", "mode")}
    parameters = {"type": "object", "properties": {**properties, "count": {"type": "integer"}}}
    return [{"name": f"tool_{i}", "description": " ".join(WORDS * 5), schema: parameters} for i in range(TOOLS)]


async def ask_in_turn(
    url: str, read_clocks: ReadClocks, protocol: str, sessions: Sequence[str], turns: int
) -> list[CpuTimes]:
    """Hold one conversation in each session, one call at a time; return CPU ms a call for each block of turns."""
    blocks = []
    dialogues = [(DIALOGUES[protocol](), session) for session in sessions]
    async with aiohttp.ClientSession(raise_for_status=True) as http:
        for _ in range(0, turns, BLOCK):
            began = read_clocks()
            for dialogue, session in dialogues:
                for _ in range(BLOCK):
                    await ask(http, f"{url}/s/{session}", dialogue)
            blocks.append(1000 * (read_clocks() - began) / (BLOCK * len(sessions)))
    return blocks


async def ask_at_once(
    url: str, read_clocks: ReadClocks, protocol: str, sessions: Sequence[str], turns: int
) -> dict[str, float]:
    """Hold all conversations at once; return CPU ms a call, and the latency of calls."""
    seconds: list[float] = []

    async def talk(http: aiohttp.ClientSession, session: str) -> None:
        dialogue = DIALOGUES[protocol]()
        for _ in range(turns):
            began = time.perf_counter()
            await ask(http, f"{url}/s/{session}", dialogue)
            seconds.append(time.perf_counter() - began)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, raise_for_status=True) as http:
        began, wall = read_clocks(), time.perf_counter()
        await asyncio.gather(*(talk(http, session) for session in sessions))
        spent, wall = read_clocks() - began, time.perf_counter() - wall
    p50, p99 = np.percentile(seconds, [50, 99]) * 1000
    calls = turns * len(sessions)
    cpu, beside = 1000 * spent / calls
    return {
        "cpu_ms": float(cpu),
        "beside_ms": float(beside),
        "calls_per_s": calls / wall,
        "p50_ms": float(p50),
        "p99_ms": float(p99),
    }


async def ask(http: aiohttp.ClientSession, base: str, dialogue: Dialogue) -> None:
    async with http.post(base + dialogue.path, json=dialogue.body) as response:
        dialogue.extend(await response.json())


def run(parent: Connection, client: Client, url: str, *arguments: Any) -> None:
    """Run a client, and send its result to the process that serves the gateway."""

    def read_clocks() -> CpuTimes:
        parent.send((CLOCKS, None))
        clocks: CpuTimes = parent.recv()
        return clocks

    async def work() -> Any:
        return await client(url, read_clocks, *arguments)

    parent.send((DONE, asyncio.run(work())))
