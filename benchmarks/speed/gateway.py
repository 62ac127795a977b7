"""Measure what the gateway costs a call, whole and beside the tokenizer (`tokentrue speed gateway`).

A scripted policy gives every prompt the same answer, a text with a call of a tool, so sampling costs nothing. The
tokenizer encodes the new message, decodes the answer and renders the chat template, which every server must do.
`session` is core/gateway/session.py without HTTP. The others send requests over HTTP from another thread, whose time is
not counted. Each figure of a call is the lowest of some repeats, because other programs only add time; the many
sessions at once are measured once. A frame of the template is kept, so a prompt of a known shape renders none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import numpy as np
from pydantic import PositiveInt

from benchmarks.speed.measure import align_columns, describe_environment
from core.engine.start_model import train_tokenizer
from core.gateway.gateway import CHAT, Gateway, serve_gateway
from core.gateway.session import SessionSettings
from core.gateway.transcriber import Transcriber
from core.options import argparse_type
from core.policy.scripted import ScriptedPolicy
from core.types import Sampling

WORDS = "the horse stands in a stable near the river and eats hay while people count what they see every day".split()
QUESTION = " ".join(WORDS * 20)
RESULT = " ".join(WORDS * 5)
CALL = {"name": "tool_0", "arguments": {"query": "horses", "count": 3}}
ANSWER = f"{' '.join(WORDS * 2)}\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>"
TOOLS = 10
BLOCK = 10
"""The turns whose mean is one number: the first ones of a conversation, those in its middle, and the last ones."""

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


CpuTimes = np.ndarray
"""Holds CPU time as a whole, and that beside the tokenizer."""


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


class Bench:
    """Holds a tokenizer, a policy that always gives ANSWER, and the gateway in front of it."""

    def __init__(self) -> None:
        self.tokenizer: Any = train_tokenizer([QUESTION], words=WORDS, tags=(), vocab_size=400)
        self.tokenizer_s = time_tokenizer(self.tokenizer)
        self.tokenizer.chat_template = TEMPLATE
        self.tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
        ids = self.tokenizer.encode(ANSWER, add_special_tokens=False)
        self.answer = (*ids, self.tokenizer.eos_token_id)
        self.policy = ScriptedPolicy(lambda prompt, sampling: self.answer)
        self.transcriber = Transcriber(self.tokenizer)
        settings = SessionSettings(max_context=1_000_000)
        self.gateway = Gateway({"policy": self.policy}, self.tokenizer, settings)
        self._opened = 0

    def open_session(self) -> str:
        self._opened += 1
        self.gateway.open_session(str(self._opened), Sampling(max_new_tokens=1000))
        return str(self._opened)

    def read_clocks(self) -> CpuTimes:
        """Return the CPU seconds of this thread, and those beside the tokenizer."""
        now = time.thread_time()
        return np.array([now, now - self.tokenizer_s[0]])


def time_tokenizer(tokenizer: Any) -> list[float]:
    """Make a tokenizer, and its copies, add the CPU seconds of each call to the one number of the returned list."""
    spent = [0.0]
    kind = type(tokenizer)

    def time_method(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return method(*arguments, **options)
            finally:
                spent[0] += time.thread_time() - began

        return call

    names = ("__call__", "encode", "decode", "apply_chat_template")  # none of them calls another as they are used here
    tokenizer.__class__ = type("TimedTokenizer", (kind,), {name: time_method(getattr(kind, name)) for name in names})
    return spent


async def measure_session(bench: Bench, turns: int, sessions: int) -> list[CpuTimes]:
    """Return the CPU ms of a session's `answer`, the mean of each block of turns."""
    dialogues = [(ChatDialogue(), bench.gateway.open_session(f"direct-{i}")) for i in range(sessions)]
    blocks = []
    for _ in range(0, turns, BLOCK):
        spent = np.zeros(2)
        for dialogue, session in dialogues:
            for _ in range(BLOCK):
                request = CHAT.read_request(dialogue.body)
                began = bench.read_clocks()
                node = await session.answer(request)
                session.deliver(node)
                spent += bench.read_clocks() - began
                dialogue.extend(json.loads(json.dumps(CHAT.write_reply(session, node, request, 0))))
        blocks.append(1000 * spent / (BLOCK * sessions))
    return blocks


async def measure_http(bench: Bench, protocol: str, turns: int, sessions: int) -> list[CpuTimes]:
    """Return the CPU ms that a request takes in the gateway's thread, the mean of each block of turns."""

    async def drive(url: str, read_clocks: Callable[[], CpuTimes]) -> list[CpuTimes]:
        blocks = []
        dialogues = [(DIALOGUES[protocol](), bench.open_session()) for _ in range(sessions)]
        async with aiohttp.ClientSession(raise_for_status=True) as http:
            for _ in range(0, turns, BLOCK):
                began = read_clocks()
                for dialogue, session in dialogues:
                    for _ in range(BLOCK):
                        await ask(http, f"{url}/s/{session}", dialogue)
                blocks.append(1000 * (read_clocks() - began) / (BLOCK * sessions))
        return blocks

    return await drive_from_thread(bench, drive)


async def measure_crowd(bench: Bench, protocol: str, turns: int, sessions: int) -> dict[str, float]:
    """Return CPU ms a call and the latency of calls, with all sessions at once."""

    async def drive(url: str, read_clocks: Callable[[], CpuTimes]) -> dict[str, float]:
        seconds: list[float] = []

        async def talk(http: aiohttp.ClientSession, session: str) -> None:
            dialogue = DIALOGUES[protocol]()
            for _ in range(turns):
                began = time.perf_counter()
                await ask(http, f"{url}/s/{session}", dialogue)
                seconds.append(time.perf_counter() - began)

        names = [bench.open_session() for _ in range(sessions)]
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, raise_for_status=True) as http:
            began, wall = read_clocks(), time.perf_counter()
            await asyncio.gather(*(talk(http, name) for name in names))
            spent, wall = read_clocks() - began, time.perf_counter() - wall
        p50, p99 = np.percentile(seconds, [50, 99]) * 1000
        calls = turns * sessions
        cpu, beside = 1000 * spent / calls
        return {
            "cpu_ms": cpu,
            "beside_ms": beside,
            "calls_per_s": calls / wall,
            "p50_ms": float(p50),
            "p99_ms": float(p99),
        }

    return await drive_from_thread(bench, drive)


async def ask(http: aiohttp.ClientSession, base: str, dialogue: Dialogue) -> None:
    async with http.post(base + dialogue.path, json=dialogue.body) as response:
        dialogue.extend(await response.json())


async def drive_from_thread(bench: Bench, drive: Callable[[str, Callable[[], CpuTimes]], Awaitable[Any]]) -> Any:
    """Serve the gateway here while `drive` runs in a thread; it gets the URL and a function that reads our clocks."""
    loop = asyncio.get_running_loop()

    async def read_clocks() -> CpuTimes:
        return bench.read_clocks()

    async def run(url: str) -> Any:
        return await drive(url, lambda: asyncio.run_coroutine_threadsafe(read_clocks(), loop).result())

    async with serve_gateway(bench.gateway) as url:
        return await asyncio.to_thread(lambda: asyncio.run(run(url)))


async def measure(turns: int, sessions: int, crowd: int, repeats: int) -> dict[str, Any]:
    """Measure everything `repeats` times, and the crowd once."""
    await measure_session(Bench(), BLOCK, 1)  # caches, and modules that are imported late
    found = []
    for _ in range(repeats):
        ways = {"session": await measure_session(Bench(), turns, sessions)}
        for protocol in DIALOGUES:
            ways[protocol] = await measure_http(Bench(), protocol, turns, sessions)
        found.append(ways)
    lowest = {name: np.min([ways[name] for ways in found], axis=0).tolist() for name in found[0]}
    return {"calls": lowest, "crowd": {name: await measure_crowd(Bench(), name, 2, crowd) for name in DIALOGUES}}


def format_calls(ways: dict[str, Sequence[Sequence[float]]]) -> str:
    """Return the table of CPU ms a call beside the tokenizer, and whole: the first turns, some later, the last ones."""
    blocks = len(ways["session"])
    shown = sorted({0, min(3, blocks - 1), blocks - 1})
    header = [f"turns {block * BLOCK + 1} to {(block + 1) * BLOCK}" for block in shown]
    rows = [[name, *("{1:.2f} of {0:.2f}".format(*cells[block]) for block in shown)] for name, cells in ways.items()]
    return align_columns(["CPU ms / call beside the tokenizer", *header], rows)


def format_crowd(crowd: dict[str, dict[str, float]], sessions: int) -> str:
    rows = [
        [
            name,
            "{beside_ms:.2f} of {cpu_ms:.2f}".format(**cell),
            f"{cell['calls_per_s']:.0f}",
            f"{cell['p50_ms']:.0f} / {cell['p99_ms']:.0f}",
        ]
        for name, cell in crowd.items()
    ]
    return align_columns([f"{sessions} sessions at once", "CPU ms / call", "calls / s", "p50 / p99 ms"], rows)


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    result = asyncio.run(measure(options.turns, options.sessions, options.crowd, options.repeats))
    print(format_calls(result["calls"]), end="\n\n")
    print(format_crowd(result["crowd"], options.crowd))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"environment": describe_environment(1), **result}, indent=2) + "\n")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue speed gateway", description=__doc__)
    parser.add_argument(
        "--turns", type=argparse_type(PositiveInt), default=100, help=f"turns of a conversation, in blocks of {BLOCK}"
    )
    parser.add_argument("--sessions", type=argparse_type(PositiveInt), default=4, help="conversations of each way")
    parser.add_argument("--repeats", type=argparse_type(PositiveInt), default=5, help="of which the lowest counts")
    parser.add_argument("--crowd", type=argparse_type(PositiveInt), default=500, help="sessions at once")
    parser.add_argument("--output", type=Path, default=Path("runs/speed/gateway.json"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
