"""What the protocols have in common: the messages of a request, what it asks for, and the errors it can get.

The codecs (openai_chat.py, openai_responses.py, anthropic_messages.py, vllm_tokens.py) read a request into an
`AgentRequest` and write the answers of the session in their own form.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from core.text.tool_calls import ToolSchema
from core.vllm_wire import TokensBody

MessageRole = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class WireCall:
    """Holds one tool call of an assistant's message. `arguments` is JSON as the client wrote it."""

    call_id: str
    name: str
    arguments: str

    def canonical(self) -> tuple[str, str]:
        """Return name and arguments in a form that equal calls share, however their JSON was written."""
        try:
            return self.name, json.dumps(canonicalize_numbers(json.loads(self.arguments or "{}")), sort_keys=True)
        except (ValueError, RecursionError):
            return self.name, collapse_whitespace(self.arguments)


@dataclass(frozen=True, slots=True)
class WireMessage:
    """Holds one message of a request.

    `reasoning` is None where the client sent none. `call_id` names the call that a tool's message answers. `marks` are
    the other ids and opaque fields of an assistant's message, in which the gateway may find its own answer.
    `references` are ids of parts of an answer that stand for these parts (Responses' item_reference).
    """

    role: MessageRole
    text: str
    reasoning: str | None = None
    calls: tuple[WireCall, ...] = ()
    call_id: str = ""
    marks: tuple[str, ...] = ()
    references: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """Holds what a client asks for. None means that the client left the choice to the session.

    `continues` is the wire id of an earlier response that the messages follow (Responses' previous_response_id).
    `instructions` are a system message that comes first and replaces the one of the response that is continued.
    `hides_tools` says that the client has tools but wants no call now, and `single_call` that it wants one at most.
    It wants `n` answers, and JSON with `wants_json`. With `wants_ids` and `wants_logprobs` it gets those of the tokens.
    `tokens` are the body of a request whose prompt is token ids and no messages.
    """

    model: str
    messages: tuple[WireMessage, ...]
    tools: tuple[ToolSchema, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    stream_usage: bool = False
    continues: str | None = None
    instructions: str | None = None
    is_retry: bool = False
    hides_tools: bool = False
    single_call: bool = False
    n: int = 1
    wants_json: bool = False
    wants_ids: bool = False
    wants_logprobs: bool = False
    tokens: TokensBody | None = None


class GatewayError(Exception):
    """Reports why a request got no answer. `status` is HTTP's, `kind` is counted, `path` names the field."""

    def __init__(self, status: int, kind: str, message: str, path: str | None = None):
        super().__init__(f"{path}: {message}" if path else message)
        self.status = status
        self.kind = kind
        self.path = path


class ContextFullError(GatewayError):
    """Reports a prompt that does not fit the context, in words by which clients know that they must compact.

    The message is OpenAI's; LangChain looks for the code in it, too. `count` is what Anthropic's has in their place.
    `role` was asked.
    """

    def __init__(self, message: str, count: str, role: str):
        super().__init__(400, "context_length_exceeded", f"{message} (context_length_exceeded)")
        self.path = "messages"
        self.count = count
        self.role = role


def refuse(path: str, message: str) -> GatewayError:
    """Make the error of a field that cannot be served as it is."""
    return GatewayError(400, "bad_request", message, path)


def refuse_part(path: str, kind: str, kinds: Collection[str]) -> GatewayError:
    """Make the error of a part of a message that is none of `kinds`. What is no text has a name of its own."""
    unread = next((name for name in ("image", "audio", "video", "file", "document") if name in kind), None)
    if unread is None:
        return refuse(path, f"{kind!r} is not implemented; only {', '.join(kinds)}")
    return GatewayError(400, f"no_{unread}", f"{kind!r}: the policy reads text alone; leave the {unread} out", path)


def write_event(kind: str, **fields: Any) -> str:
    """Return a server-sent event that names its kind, as Anthropic's Messages and OpenAI's Responses have them."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


def show_failure(text: str) -> str:
    """Return the result of a tool that failed as the model sees it. No chat template has a field that says so."""
    return text if text.lstrip().lower().startswith("error") else f"Error: {text}"


def canonicalize_numbers(value: Any) -> Any:
    """Return a JSON value with all numbers as JavaScript has them: 1.0 is 1, integers are rounded, infinity is null."""
    if isinstance(value, dict):
        return {key: canonicalize_numbers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [canonicalize_numbers(part) for part in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    try:
        number = float(value) + 0.0  # -0.0 becomes 0.0
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def collapse_whitespace(text: str) -> str:
    """Return the text with every run of whitespace as one space and none at its ends."""
    return " ".join(text.split())


def canonicalize_messages(messages: Sequence[WireMessage]) -> tuple[Any, ...]:
    """Return messages in a form that equal ones share, whatever their whitespace and the order of tools' results."""
    canonical: list[tuple[Any, ...]] = []
    results: list[tuple[Any, ...]] = []
    for message in messages:
        calls = tuple(call.canonical() for call in message.calls)
        entry = (message.role, collapse_whitespace(message.text), message.call_id, calls)
        if message.role == "tool":
            results.append(entry)
            continue
        canonical += [*sorted(results), entry]
        results = []
    return (*canonical, *sorted(results))


def join_parts(parts: Sequence[WireMessage]) -> WireMessage:
    """Make one answer of its parts: thoughts, texts and calls, each in a message of its own."""
    return WireMessage(
        "assistant",
        "".join(part.text for part in parts),
        "".join(part.reasoning or "" for part in parts) or None,
        tuple(call for part in parts for call in part.calls),
        marks=tuple(mark for part in parts for mark in part.marks),
        references=tuple(reference for part in parts for reference in part.references),
    )
