"""This module reads the calls of Kimi K2, each with the id under which the template shows its result.

They stand in one section: `<|tool_call_begin|>functions.NAME:N<|tool_call_argument_begin|>{...}<|tool_call_end|>`. JSON
says where the arguments end, so they may hold any tag.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from core.text.tool_calls import CallError, Note, ToolCall, ToolSchema, decode_json

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"

_HEAD = re.compile(rf"\s*+{re.escape(CALL)}\s*+(functions\.([\w.-]++):\d++)\s*+{re.escape(ARGUMENTS)}")
_CALL_END = re.compile(rf"\s*+{re.escape(CALL_END)}\s*+")


def read_kimi(text: str, tools: Sequence[ToolSchema]) -> tuple[str, list[ToolCall], list[Note]] | CallError:
    """Return the text outside of the calls, the calls, and what was not written as it should be."""
    outside, begun, _ = text.partition(BEGIN)
    place, calls = len(outside + begun), list[ToolCall]()
    while begun and (head := _HEAD.match(text, place)):
        decoded = decode_json(text, head.end())
        if isinstance(decoded, CallError):
            cut = text.find(CALL_END, head.end()) < 0
            return CallError("unclosed_call", f"a {CALL} was not closed with {CALL_END}") if cut else decoded
        arguments, place = decoded
        if not isinstance(arguments, dict):
            return CallError("arguments_not_object", "arguments must be a JSON object")
        calls.append(ToolCall(head[2], arguments, head[1]))
        if not (end := _CALL_END.match(text, place)):
            break
        place = end.end()
    if calls and not text[place:].strip():
        return outside, calls, ["unended_call"]
    if begun and not text.startswith(END, place):
        if calls:
            return CallError("stray_tag", f"behind a call must stand {CALL_END}, and behind the last one {END}")
        return CallError("not_object", f"a call is {CALL}functions.NAME:NUMBER{ARGUMENTS}{{...}}{CALL_END}")
    if begun and not calls:
        return CallError("no_call", f"between {BEGIN} and {END} stands no call")
    outside += text[place + len(END) :] if begun else ""
    stray = next((tag for tag in (BEGIN, END, CALL, CALL_END) if tag in outside), None)
    return CallError("stray_tag", f"there is a {stray} outside of a section") if stray else (outside, calls, [])
