"""This module reads a completion as reasoning, text and tool calls, in the format that the chat template teaches.

A completion is only read: its ids stay what was sampled. One with a call that cannot be read becomes text, and the
error has a kind, which is counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from core.options import RecipeError
from core.text.tokenizer import Tokenizer
from core.text.tool_calls import (
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
        from core.text.glm import read_glm

        return read_glm
    if "<|tool_call_begin|>functions.probe_name:0<|tool_call_argument_begin|>{" in shown:
        from core.text.kimi import read_kimi

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
