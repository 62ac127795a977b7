"""Agents that treat their conversations as real ones do: they rewrite, branch, retry, compact, trim and delegate."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.gateway import anthropic_messages, openai_chat, openai_responses
from core.gateway.bodies import parse_body
from core.gateway.gateway import Codec
from core.gateway.history import Answer
from core.gateway.messages import WireCall, WireMessage
from core.gateway.session import GatewaySession

PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}, "count": {"type": "integer"}}}
CHAT_TOOLS = [{"type": "function", "function": {"name": "search", "description": "-", "parameters": PARAMETERS}}]
RESPONSES_TOOLS = [{"type": "function", "name": "search", "description": "-", "parameters": PARAMETERS}]
ANTHROPIC_TOOLS = [{"name": "search", "description": "-", "input_schema": PARAMETERS}]

KEEPING = ("verbatim", "drop reasoning", "reserialise", "strip", "marked", "flatten")
"""The ways to send an answer back after which it is still the one that was sampled."""

ECHOES = (*KEEPING, "edit text", "edit call", "edit thought")

ACTIONS = (
    *("go on",) * 8, "branch", "retry", "lose", "summarise", "compact", "trim", "reorder results", "delegate",
    "delegate", "collect",
)  # fmt: skip

MAX_DEPTH = 2
"""Bounds the sub-agents of sub-agents."""


def echo(answer: Answer, how: str, rng: random.Random) -> WireMessage:
    """Repeat an answer as a client does that transforms it."""
    message = answer.message
    if how == "drop reasoning":
        return replace(message, reasoning=None)
    if how == "reserialise":
        written = [json.dumps(json.loads(call.arguments), sort_keys=True, indent=1) for call in message.calls]
        calls = tuple(replace(call, arguments=text) for call, text in zip(message.calls, written, strict=True))
        return replace(message, calls=calls, reasoning=None)
    if how == "strip":
        return replace(message, text=f"  {message.text}\n", reasoning=message.reasoning and f"{message.reasoning} ")
    if how == "marked":
        return replace(message, marks=(answer.wire_id("msg"),))
    if how == "flatten" and message.calls:
        calls_shown = [
            {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": json.loads(c.arguments)}}
            for c in message.calls
        ]
        return WireMessage("assistant", f"{message.text}\nCalling tools:\n{calls_shown}")
    if how == "edit text":
        return replace(message, text=f"{message.text} but edited {rng.random()}")
    if how == "edit call" and message.calls:
        first = replace(message.calls[0], arguments=json.dumps({"query": f"edited {rng.random()}", "count": 1}))
        return replace(message, calls=(first, *message.calls[1:]))
    if how == "edit thought" and message.reasoning:
        return replace(message, reasoning=f"edited {rng.random()}")
    return message


def answer_calls(answer: Answer, rng: random.Random) -> list[WireMessage]:
    """The messages that follow an answer: the results of its tools in any order, or a new message of the user's."""
    results = [
        WireMessage("tool", f'result of "{call.call_id[-1]}"\nand more', call_id=call.call_id)
        for call in answer.message.calls
    ]
    rng.shuffle(results)
    return results or [WireMessage("user", rng.choice(["go on", "and then?", "why"]))]


def split_text(text: str, kind: str, rng: random.Random, role: str = "assistant") -> list[dict[str, str]]:
    """Write a text as parts: those of an answer are cut anywhere, others are lines."""
    if role != "assistant":
        return [{"type": kind, "text": line} for line in text.split("\n")]
    cuts = sorted(rng.randint(0, len(text)) for _ in range(rng.randint(0, 2)))
    places = [0, *cuts, len(text)]
    return [{"type": kind, "text": text[begin:end]} for begin, end in itertools.pairwise(places)]


def write_chat(messages: Sequence[WireMessage], rng: random.Random) -> dict[str, Any]:
    """Write messages as a client of Chat Completions does; every text is whole or in parts, each time anew."""
    written = []
    for message in messages:
        content = message.text if rng.random() < 0.5 else split_text(message.text, "text", rng, message.role)
        entry: dict[str, Any] = {"role": message.role, "content": content}
        if message.role == "tool":
            entry["tool_call_id"] = message.call_id
        if message.reasoning:
            entry["reasoning_content"] = message.reasoning
        if message.calls:
            entry["tool_calls"] = [_write_chat_call(call) for call in message.calls]
        written.append(entry)
    return {"messages": written, "tools": CHAT_TOOLS}


def _write_chat_call(call: WireCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def write_responses(messages: Sequence[WireMessage], rng: random.Random) -> dict[str, Any]:
    """Write messages as the items of Responses; an answer is several of them."""
    items: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "tool":
            items.append({"type": "function_call_output", "call_id": message.call_id, "output": message.text})
            continue
        if message.role != "assistant":
            items.append({"role": message.role, "content": split_text(message.text, "input_text", rng, message.role)})
            continue
        mark = {"id": message.marks[0]} if message.marks else {}
        if message.reasoning:
            thoughts = [{"type": "reasoning_text", "text": message.reasoning}]
            items.append({"type": "reasoning", "summary": [], "content": thoughts, **mark})
        if message.text or not message.calls:
            text = split_text(message.text, "output_text", rng)
            items.append({"type": "message", "role": "assistant", "content": text, **mark})
        items += [
            {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
            for call in message.calls
        ]
    return {"input": items, "tools": RESPONSES_TOOLS}


def write_anthropic(messages: Sequence[WireMessage], rng: random.Random) -> dict[str, Any]:
    """Write messages as a client of Anthropic's Messages does: results of tools that follow each other are one."""
    written: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "tool":
            result = {"type": "tool_result", "tool_use_id": message.call_id, "content": message.text}
            follows = written[-1]["role"] == "user" and written[-1]["content"][-1]["type"] == "tool_result"
            if follows and rng.random() < 0.8:
                written[-1]["content"].append(result)
            else:
                written.append({"role": "user", "content": [result]})
            continue
        blocks: list[dict[str, Any]] = []
        if message.reasoning:
            signature = message.marks[0] if message.marks else "-"
            blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": signature})
        # Blocks of an answer are one text; those of a user are paragraphs.
        blocks += (
            split_text(message.text, "text", rng)
            if message.role == "assistant"
            else [{"type": "text", "text": message.text}]
        )
        for call in message.calls:
            arguments = json.loads(call.arguments)
            blocks.append({"type": "tool_use", "id": call.call_id, "name": call.name, "input": arguments})
        written.append({"role": message.role, "content": blocks})
    return {"messages": written, "tools": ANTHROPIC_TOOLS, "max_tokens": 10_000}


WRITERS: Mapping[str, tuple[Codec, Callable[[Sequence[WireMessage], random.Random], dict[str, Any]]]] = {
    "chat": (openai_chat, write_chat),
    "responses": (openai_responses, write_responses),
    "anthropic": (anthropic_messages, write_anthropic),
}


class FuzzedAgent:
    """Holds one conversation over one protocol. Its sub-agents join `crew`, and all of them take turns.

    `chains` counts how often it began a conversation that its earlier ones do not lead to, so its linear chains.
    """

    def __init__(
        self,
        session: GatewaySession,
        crew: list[FuzzedAgent],
        rng: random.Random,
        echoes: Sequence[str],
        question: str,
        depth: int = 0,
    ):
        self.session = session
        self.crew = crew
        self.rng = rng
        self.echoes = echoes
        self.depth = depth
        self.codec, self.write = WRITERS[rng.choice(list(WRITERS))]
        self.messages = [WireMessage("system", f"agent {len(crew)}"), WireMessage("user", question)]
        self.earlier: list[list[WireMessage]] = []
        self.text = ""
        self.chains = 1
        self.seen: Counter[str] = Counter({f"depth {depth}": 1})
        crew.append(self)

    async def step(self, action: str) -> None:
        """Do one thing, then ask for the next answer."""
        happened = await self._change_conversation(action)
        self.earlier.append(list(self.messages))
        answer = await self._ask(self.messages, action)
        how = self.rng.choice(self.echoes)
        sent = echo(answer, how, self.rng)
        edited = how.startswith("edit") and sent != answer.message
        self.chains += edited
        self.text = answer.message.text
        self.messages += [sent, *answer_calls(answer, self.rng)]
        if happened:
            self.seen[action] += 1
        self.seen[how if edited or how in KEEPING else "verbatim"] += 1

    async def _change_conversation(self, action: str) -> bool:
        """Change the messages as an action does; return whether it could be done."""
        rng, messages = self.rng, self.messages
        if action in ("branch", "summarise", "compact", "trim"):
            if len(messages) < 6:
                return False
            self.chains += 1
        if action == "branch":
            self.messages = list(rng.choice(self.earlier))
        elif action == "summarise":
            request = [*messages, WireMessage("user", "summarise what was done")]
            summary = (await self._ask(request, action)).message.text
            self.messages = [messages[0], WireMessage("user", f"so far: {summary}")]
        elif action == "compact":
            self.messages = [messages[0], WireMessage("user", f"so far: {rng.random()}"), *messages[-2:]]
        elif action == "trim":
            self.messages = [messages[0], *messages[3:]]
        elif action == "reorder results":
            pairs = [i for i in range(1, len(messages)) if messages[i - 1].role == messages[i].role == "tool"]
            if not pairs:
                return False
            i = rng.choice(pairs)
            messages[i - 1 : i + 1] = messages[i], messages[i - 1]
        elif action == "delegate":
            if self.depth == MAX_DEPTH or len(self.crew) > 6:
                return False
            FuzzedAgent(self.session, self.crew, rng, self.echoes, f"help: {self.text}", self.depth + 1)
        elif action == "collect":
            messages.append(WireMessage("user", f"a helper says: {rng.choice(self.crew).text}"))
        return True

    async def _ask(self, messages: Sequence[WireMessage], action: str) -> Answer:
        body = {"model": "policy", **self.write(messages, self.rng)}
        request = self.codec.read_request(parse_body(json.dumps(body).encode()))
        [answer] = await self.session.answer_all(request)
        if action == "lose":
            self.session.mark_lost(answer)
        else:
            self.session.mark_delivered(answer)
        if action in ("retry", "lose"):
            [answer] = await self.session.answer_all(replace(request, is_retry=True))
            self.session.mark_delivered(answer)
        return answer
