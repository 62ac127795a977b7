"""Classifies echoes. An echo is an answer of the policy that comes back in a later request, as the client wrote it.

These functions are pure: they compare two messages. history.py finds the answer that a message repeats.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from core.gateway.messages import WireCall, WireMessage, canonicalize_numbers, collapse_whitespace
from core.text.tool_calls import ToolSchema

EchoKind = Literal["verbatim", "reserialised", "reasoning_dropped", "flattened", "edited", "foreign"]
"""Names how an answer came back. The first four keep the stored ids; the last two are encoded anew and untrained."""


def classify_echo(sent: WireMessage, message: WireMessage, tools: Sequence[ToolSchema]) -> EchoKind:
    """Say how `message` repeats the answer that was sent to a client with these tools."""
    verbatim = message.text == sent.text and list_written_calls(message) == list_written_calls(sent)
    message = message if verbatim else leave_out_defaults(message, sent, tools)
    if not verbatim and make_content_key(message) != make_content_key(sent):
        return "flattened" if is_flattened(sent, message) else "edited"
    if message.reasoning and collapse_whitespace(message.reasoning) != collapse_whitespace(sent.reasoning or ""):
        return "edited"
    if sent.reasoning and not message.reasoning:
        return "reasoning_dropped"
    return "verbatim" if verbatim else "reserialised"


def make_content_key(message: WireMessage) -> tuple[Any, ...]:
    """Return what two echoes of one answer share, whatever happened to its thoughts."""
    return collapse_whitespace(message.text), tuple(call.canonical() for call in message.calls)


def list_written_calls(message: WireMessage) -> list[tuple[str, str]]:
    """Return names and arguments of a message's calls as they were written."""
    return [(call.name, call.arguments) for call in message.calls]


def leave_out_defaults(message: WireMessage, sent: WireMessage, tools: Sequence[ToolSchema]) -> WireMessage:
    """Return a message without the arguments that a client filled in as the tool's schema says (Claude Code does)."""
    if len(message.calls) != len(sent.calls):
        return message
    schemas = {tool.name: tool.parameters.get("properties") for tool in tools}
    pairs = zip(message.calls, sent.calls, strict=True)
    return replace(message, calls=tuple(_leave_out_defaults(*pair, schemas.get(pair[0].name)) for pair in pairs))


def _leave_out_defaults(call: WireCall, sent: WireCall, properties: Any) -> WireCall:
    try:
        arguments, given = canonicalize_numbers(json.loads(call.arguments)), json.loads(sent.arguments)
    except (ValueError, RecursionError):
        return call
    if not all(isinstance(each, dict) for each in (arguments, given, properties)):
        return call
    defaults = {
        name: canonicalize_numbers(each["default"])
        for name, each in properties.items()
        if isinstance(each, dict) and "default" in each
    }
    added = (name for name in arguments if name in defaults and name not in given)
    filled = {name for name in added if repr(arguments[name]) == repr(defaults[name])}
    kept = {name: value for name, value in arguments.items() if name not in filled}
    return replace(call, arguments=json.dumps(kept)) if filled else call


def is_flattened(sent: WireMessage, message: WireMessage) -> bool:
    """Return whether the text holds the sent text and then, as one list of Python or JSON, the sent calls."""
    if message.calls or not sent.calls:
        return False
    if not collapse_whitespace(message.text).startswith(collapse_whitespace(sent.text)):
        return False
    begin, end = message.text.find("[", len(sent.text)), message.text.rfind("]") + 1
    try:
        found = [_read_flattened_call(call) for call in ast.literal_eval(message.text[begin:end])]
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        return False
    return found == [call.canonical() for call in sent.calls]


def _read_flattened_call(call: Mapping[str, Any]) -> tuple[str, str]:
    function = call["function"]
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return WireCall("", function["name"], text).canonical()
