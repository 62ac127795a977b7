"""This module reads the calls of GLM: `<tool_call>NAME`, `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`, a close.

A value is written as it is, so it may hold any tag. It ends at the first `</arg_value>` behind which the call goes on,
or ends and nothing but calls follow. A reply in which that may mean two things is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from core.text.schemas import find_argument, read_value
from core.text.tool_calls import CLOSE, OPEN, CallError, Note, ToolCall, ToolSchema

_HEAD = re.compile(rf"{OPEN}\s*+([^\s<]++)\s*+(?=<arg_key>|{CLOSE}|\Z)")
_KEY = re.compile(r"\s*+<arg_key>([^<]*+)</arg_key>\s*+<arg_value>")
_VALUE_END = re.compile(rf"</arg_value>\s*+(?=<arg_key>[^<]*+</arg_key>\s*+<arg_value>|{CLOSE}\s*+(?:{OPEN}|\Z)|\Z)")


def read_glm(text: str, tools: Sequence[ToolSchema]) -> tuple[str, list[ToolCall], list[Note]] | CallError:
    """Return the text outside of the calls, the calls, and what was not written as it should be."""
    schemas = {tool.name: tool.parameters for tool in tools}
    outside, calls, notes = "", list[ToolCall](), list[Note]()
    place = opened = 0
    while (start := text.find(OPEN, place)) >= 0:
        outside += text[place:start]
        head = _HEAD.match(text, start)
        if head is None:
            return CallError(
                "not_object", f"behind {OPEN} must stand the name of a tool, and then <arg_key> or {CLOSE}"
            )
        name, place, arguments = head[1], head.end(), dict[str, Any]()
        schema = schemas.get(name, {})
        while key := _KEY.match(text, place):
            found = _VALUE_END.search(text, key.end())
            value = text[key.end() : found.start() if found else None]
            if found is None and "</arg_value>" in value:
                return CallError(
                    "unclosed_call", f"behind </arg_value> must stand <arg_key> or {CLOSE}, and then calls"
                )
            # A value that opens more than it closes, and a later one that closes more, may be one that holds calls.
            surplus = value.count("<arg_value>") - value.count("</arg_value>")
            if surplus < 0 < opened:
                return CallError("unclosed_call", f"{key[1][:50]!r} closes what a value before it opens")
            opened += surplus
            argument = find_argument(key[1], schema, schema)
            if key[1] in arguments:
                return CallError("duplicate_key", f"the key {key[1][:50]!r} occurs twice")
            if arguments and argument is None and schema.get("properties"):  # a value may hold it instead
                return CallError("unknown_argument", f"{name[:50]} has no argument {key[1][:50]!r}")
            arguments[key[1]], typed = read_value(value, argument, schema)
            notes += [] if typed else ["untyped_argument"]
            place = found.end() if found else len(text)
            notes += [] if found else ["unended_argument"]
        calls.append(ToolCall(name, arguments))
        if text.startswith(CLOSE, place):
            place += len(CLOSE)
        elif place < len(text):
            return CallError(
                "extra_key", "in a call, only <arg_key>KEY</arg_key><arg_value>VALUE</arg_value> may stand"
            )
        elif "unended_argument" not in notes:
            notes.append("unended_call")
    outside += text[place:]
    if CLOSE in outside:
        return CallError("stray_tag", f"there is a {CLOSE} without {OPEN}")
    return outside, calls, notes
