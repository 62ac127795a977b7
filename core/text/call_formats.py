"""This module reads a completion as reasoning, text and tool calls, in the format that the chat template teaches.

A completion is only read: its ids stay what was sampled. One with a call that cannot be read becomes text, and the
error has a kind, which is counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.options import RecipeError
from core.text.tokenizer import Tokenizer
from core.text.tool_calls import (
    CLOSE,
    OPEN,
    THOUGHT_END,
    CallError,
    Note,
    ToolCall,
    ToolSchema,
    decode_json,
    read_calls,
    split_thoughts,
)

PYTHON_TAG = "<|python_tag|>"
_SEPARATOR = re.compile(r"[;\s]*")


@dataclass(frozen=True, slots=True)
class Reply:
    """Holds what a completion says. `reasoning` are its thoughts; `text` is what is left beside the calls.

    `notes` say which calls were read although they were not written as they should be; they are to be counted.
    """

    text: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    error: CallError | None = None
    notes: tuple[Note, ...] = ()


Read = tuple[str, list[ToolCall], list[Note]]
"""Holds the text outside of the calls, the calls, and notes on how they were written."""


CallFormat = Callable[[str, Sequence[ToolSchema]], Read | CallError]
"""Reads the calls in a text without thoughts, as one way to write them has it."""


def read_hermes(text: str, tools: Sequence[ToolSchema]) -> Read | CallError:
    """Read `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen2.5, Qwen3)."""
    return read_calls(text)


def read_llama(text: str, tools: Sequence[ToolSchema]) -> Read | CallError:
    """Read `{"name": ..., "parameters": {...}}` and nothing else (Llama 3); several calls are parted by `;`.

    Text that is no such object is an answer, unless `<|python_tag|>` announces a call or it names a tool.
    """
    outside, announced, rest = "", "", text.strip()
    if not rest.startswith("{"):
        outside, announced, rest = text.rstrip().partition(PYTHON_TAG)
    if not announced and outside:
        return text, [], []
    calls: list[ToolCall] = []
    place = 0
    while place < len(rest) or (announced and not calls):
        call = _read_llama_call(rest, place)
        if isinstance(call, CallError):
            named = re.match(r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"([^"]*)"', rest)
            meant = announced or calls or (named and named[1] in {tool.name for tool in tools})
            return call if meant else (text, [], [])
        calls.append(call[0])
        place = _SEPARATOR.match(rest, call[1]).end()  # type: ignore[union-attr]
    return outside, calls, []


def _read_llama_call(text: str, start: int) -> tuple[ToolCall, int] | CallError:
    """Read the object that stands at `start`; return it and where it ends."""
    decoded = decode_json(text, start)
    if isinstance(decoded, CallError):
        return decoded
    value, end = decoded
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return CallError("not_object", "a call is a JSON object with the keys name and parameters")
    if not isinstance(value.get("parameters"), dict) or len(value) != 2:
        return CallError("missing_key", "a call has the keys name and parameters, an object, and no other key")
    return ToolCall(value["name"], value["parameters"]), end


_GLM_HEAD = re.compile(rf"{OPEN}\s*+([^\s<]++)\s*+(?=<arg_key>|{CLOSE}|\Z)")
_GLM_KEY = re.compile(r"\s*+<arg_key>([^<]*+)</arg_key>\s*+<arg_value>")
_GLM_END = re.compile(rf"</arg_value>\s*+(?=<arg_key>[^<]*+</arg_key>\s*+<arg_value>|{CLOSE}\s*+(?:{OPEN}|\Z)|\Z)")


def read_glm(text: str, tools: Sequence[ToolSchema]) -> Read | CallError:
    """Read `<tool_call>NAME`, `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`, a close (GLM).

    A value is written as it is, so it may hold any tag. It ends at the first `</arg_value>` behind which the call goes
    on, or ends and nothing but calls follow. A reply in which that may mean two things is an error.
    """
    from core.text.schemas import find_argument, read_value  # here, because a conversation imports this file

    schemas = {tool.name: tool.parameters for tool in tools}
    outside, calls, notes = "", list[ToolCall](), list[Note]()
    place = opened = 0
    while (start := text.find(OPEN, place)) >= 0:
        outside += text[place:start]
        head = _GLM_HEAD.match(text, start)
        if head is None:
            return CallError(
                "not_object", f"behind {OPEN} must stand the name of a tool, and then <arg_key> or {CLOSE}"
            )
        name, place, arguments = head[1], head.end(), dict[str, Any]()
        schema = schemas.get(name, {})
        while key := _GLM_KEY.match(text, place):
            found = _GLM_END.search(text, key.end())
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


BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"

_KIMI_HEAD = re.compile(rf"\s*+{re.escape(CALL)}\s*+(functions\.([\w.-]++):\d++)\s*+{re.escape(ARGUMENTS)}")
_KIMI_CALL_END = re.compile(rf"\s*+{re.escape(CALL_END)}\s*+")


def read_kimi(text: str, tools: Sequence[ToolSchema]) -> Read | CallError:
    """Read the calls of Kimi K2, each with the id under which the template shows its result.

    They stand in one section: `<|tool_call_begin|>functions.NAME:N<|tool_call_argument_begin|>{...}<|tool_call_end|>`.
    JSON says where the arguments end, so they may hold any tag.
    """
    outside, begun, _ = text.partition(BEGIN)
    place, calls = len(outside + begun), list[ToolCall]()
    while begun and (head := _KIMI_HEAD.match(text, place)):
        decoded = decode_json(text, head.end())
        if isinstance(decoded, CallError):
            cut = text.find(CALL_END, head.end()) < 0
            return CallError("unclosed_call", f"a {CALL} was not closed with {CALL_END}") if cut else decoded
        arguments, place = decoded
        if not isinstance(arguments, dict):
            return CallError("arguments_not_object", "arguments must be a JSON object")
        calls.append(ToolCall(head[2], arguments, head[1]))
        if not (end := _KIMI_CALL_END.match(text, place)):
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


def detect_format(tokenizer: Tokenizer) -> CallFormat | None:
    """Return the format in which the chat template shows earlier calls; None if it shows none, or in another one."""
    function = {"name": "probe_name", "arguments": {"probe_key": "probe_value"}}
    call = {"type": "function", "id": "functions.probe_name:0", "function": function}
    messages = [{"role": "user", "content": "-"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    try:
        shown = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:  # templates raise what they like
        return None
    if "<function=probe_name>" in shown:
        from core.text.qwen_coder import read_qwen_coder  # the longest reader, for the templates that need it

        return read_qwen_coder
    if re.search(
        r"<tool_call>\s*probe_name\s*<arg_key>probe_key</arg_key>\s*<arg_value>probe_value</arg_value>", shown
    ):
        return read_glm
    if "<|tool_call_begin|>functions.probe_name:0<|tool_call_argument_begin|>{" in shown:
        return read_kimi
    if re.search(r'<tool_call>\s*\{"name": "probe_name"', shown):
        return read_hermes
    return read_llama if re.search(r'\{"name": "probe_name", "parameters"', shown) else None


def need_format(key: str | None, tokenizer: Tokenizer) -> CallFormat:
    """Return the form in which the chat template writes calls, or raise RecipeError; `key` (if any) asks for it."""
    call_format = detect_format(tokenizer)
    if call_format is None:
        why = "the model's chat template shows no tool calls in a known way;"
        begin = f"{key} is calls, and {why} set {key} to another format, or" if key else f"model.path: {why}"
        raise RecipeError(f"{begin} take a model whose template does")
    return call_format


def read_reply(
    text: str, call_format: CallFormat | None, tools: Sequence[ToolSchema] = (), *, cut: bool = False
) -> Reply:
    """Read a completion's text behind what its prompt has opened (Renderer.find_opening).

    Without a format, or without tools, it has no calls. A reply that was `cut` has none that ends within an argument.
    """
    thoughts, answer = split_thoughts(text)
    reasoning = "\n\n".join(filter(None, thoughts))
    if answer is None:
        error = CallError("unclosed_thought", f"the thoughts were not closed with {THOUGHT_END}")
        return Reply("", reasoning, error=error)
    reply = Reply(answer.strip(), reasoning)
    if call_format is None or not tools:
        return reply
    read = call_format(answer, tools)
    if cut and not isinstance(read, CallError) and "unended_argument" in read[2]:
        read = CallError("unclosed_call", "the reply was cut within an argument")
    if isinstance(read, CallError):
        return replace(reply, error=read)
    outside, calls, notes = read
    return Reply(outside.strip(), reasoning, tuple(calls), notes=tuple(notes))
