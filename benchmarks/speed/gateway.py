"""Measure what the gateway costs a call, whole and beside the tokenizer (`tokentrue speed gateway`).

A scripted policy gives every prompt the same answer, a text with a call of a tool, so sampling costs nothing. The
tokenizer encodes the new message, decodes the answer and renders the chat template, which every server must do.
`session` is core/gateway/session.py without HTTP. The others send requests over HTTP from another process, as agents
do. Each figure of a call is the lowest of some repeats, because other programs only add time; the many sessions at once
are measured once. A frame of the template is kept, so a prompt of a known shape renders none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt

from benchmarks.speed import gateway_client
from benchmarks.speed.gateway_client import BLOCK, DIALOGUES, QUESTION, WORDS, ChatDialogue, CpuTimes
from benchmarks.speed.measure import align_columns, describe_environment
from core.gateway.gateway import CHAT, Gateway, serve_gateway
from core.gateway.session import SessionSettings
from core.gateway.transcriber import Transcriber
from core.options import argparse_type
from core.policy.scripted import ScriptedPolicy
from core.train.start_model import train_tokenizer
from core.types import Sampling

CALL = {"name": "tool_0", "arguments": {"query": "horses", "count": 3}}
ANSWER = f"{' '.join(WORDS * 2)}\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>"

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


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
                session.mark_delivered(node)
                spent += bench.read_clocks() - began
                dialogue.extend(json.loads(json.dumps(CHAT.write_reply(session, node, request, 0))))
        blocks.append(1000 * spent / (BLOCK * sessions))
    return blocks


async def measure_http(bench: Bench, protocol: str, turns: int, sessions: int) -> list[CpuTimes]:
    """Return the CPU ms that a request takes in the gateway's thread, the mean of each block of turns."""
    names = [bench.open_session() for _ in range(sessions)]
    blocks: list[CpuTimes] = await drive(bench, gateway_client.ask_in_turn, protocol, names, turns)
    return blocks


async def measure_crowd(bench: Bench, protocol: str, turns: int, sessions: int) -> dict[str, float]:
    """Return CPU ms a call and the latency of calls, with all sessions at once."""
    names = [bench.open_session() for _ in range(sessions)]
    cell: dict[str, float] = await drive(bench, gateway_client.ask_at_once, protocol, names, turns)
    return cell


async def drive(bench: Bench, client: gateway_client.Client, *arguments: Any) -> Any:
    """Serve the gateway here while a process runs the client, which may read our clocks; return its result."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def hear() -> None:
        try:
            asked, value = ours.recv()
        except EOFError:
            result.set_exception(RuntimeError("the client of the benchmark has failed (see above)"))
            return
        if asked == gateway_client.CLOCKS:
            ours.send(bench.read_clocks())
        else:
            result.set_result(value)

    async with serve_gateway(bench.gateway) as url:
        process = context.Process(target=gateway_client.run, args=(theirs, client, url, *arguments), daemon=True)
        process.start()
        theirs.close()
        asyncio.get_running_loop().add_reader(ours.fileno(), hear)
        try:
            return await result
        finally:
            asyncio.get_running_loop().remove_reader(ours.fileno())
            ours.close()
            process.terminate()  # it has ended, or nobody answers it any more
            process.join()


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
