"""This module reads a completion as reasoning, text and tool calls, in the format that the chat template teaches.

A completion is only read: its ids stay what was sampled. One with a call that cannot be read becomes text, and the
error has a kind, which is counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from core.text.tokenizer import Tokenizer
from core.text.tool_calls import (
    THOUGHT,
    THOUGHT_END,
    CallError,
    ToolCall,
    ToolSchema,
    parse_call,
    parse_json,
    split_calls,
)

PYTHON_TAG = "<|python_tag|>"


@dataclass(frozen=True, slots=True)
class Reply:
    """Holds what a completion says. `reasoning` stands before `</think>`; `text` is what is left beside the calls."""

    text: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    error: CallError | None = None


class CallFormat(Protocol):
    """One way to write tool calls."""

    def parse(self, text: str, tools: Sequence[ToolSchema]) -> tuple[str, list[ToolCall]] | CallError:
        """Return the text outside of the calls, and the calls; `text` holds no reasoning."""
        ...


class _TaggedFormat:
    """Reads and writes calls between `<tool_call>` and `</tool_call>`."""

    def parse(self, text: str, tools: Sequence[ToolSchema]) -> tuple[str, list[ToolCall]] | CallError:
        split = split_calls(text)
        if isinstance(split, CallError):
            return split
        calls: list[ToolCall] = []
        for body in split[1]:
            call = self.parse_body(body, tools)
            if isinstance(call, CallError):
                return call
            calls.append(call)
        return split[0], calls

    def parse_body(self, body: str, tools: Sequence[ToolSchema]) -> ToolCall | CallError:
        raise NotImplementedError


class HermesFormat(_TaggedFormat):
    """Writes `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen2.5, Qwen3)."""

    def parse_body(self, body: str, tools: Sequence[ToolSchema]) -> ToolCall | CallError:
        return parse_call(body)


class QwenCoderFormat(_TaggedFormat):
    """Writes `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>` (Qwen3-Coder).

    A value is JSON where the tool's schema asks for another type than string, and text otherwise.
    """

    def parse_body(self, body: str, tools: Sequence[ToolSchema]) -> ToolCall | CallError:
        body = body.strip()
        if not (body.startswith("<function=") and body.endswith("</function>")):
            return CallError("not_object", "between the tags must stand <function=NAME>...</function>")
        name, closed, rest = body.removeprefix("<function=").removesuffix("</function>").partition(">")
        if not closed or not name.strip():
            return CallError("missing_key", "<function=NAME> has no name or no end")
        schema = next((tool for tool in tools if tool.name == name.strip()), None)
        properties = _as_dict(schema.parameters.get("properties")) if schema else {}
        before, *parts = rest.split("<parameter=")
        if before.strip():
            return CallError("extra_key", "in a function, only <parameter=KEY>VALUE</parameter> may stand")
        arguments: dict[str, Any] = {}
        for part in parts:
            key, opened, rest = part.partition(">")
            value, ended, after = rest.partition("</parameter>")
            if not (opened and ended) or after.strip():
                return CallError("unclosed_call", f"the parameter {key[:50]!r} was not closed with </parameter>")
            if key in arguments:
                return CallError("duplicate_key", f"the key {key[:50]!r} occurs twice")
            arguments[key] = _read_value(value.removeprefix("\n").removesuffix("\n"), _as_dict(properties.get(key)))
        return ToolCall(name.strip(), arguments)


class LlamaFormat:
    """Writes `{"name": ..., "parameters": {...}}` and nothing else (Llama 3); several calls are parted by `;`.

    A text that is no such object is an answer, unless `<|python_tag|>` announces a call.
    """

    def parse(self, text: str, tools: Sequence[ToolSchema]) -> tuple[str, list[ToolCall]] | CallError:
        announced = text.lstrip().startswith(PYTHON_TAG)
        rest = text.lstrip().removeprefix(PYTHON_TAG).strip()
        if not announced and not rest.startswith("{"):
            return text, []
        calls: list[ToolCall] = []
        while rest:
            call = self._parse_first(rest)
            if isinstance(call, CallError):
                return call if announced or calls else (text, [])
            calls.append(call[0])
            rest = rest[call[1] :].lstrip("; \n")
        return "", calls

    def _parse_first(self, text: str) -> tuple[ToolCall, int] | CallError:
        """Parse the object that `text` begins with; return it and its length."""
        try:
            _, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError) as error:
            return CallError("not_json", f"the call is no JSON ({error})"[:200])
        value = parse_json(text[:end])
        if isinstance(value, CallError):
            return value
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return CallError("not_object", "a call is a JSON object with the keys name and parameters")
        if not isinstance(value.get("parameters"), dict) or len(value) != 2:
            return CallError("missing_key", "a call has the keys name and parameters, an object, and no other key")
        return ToolCall(value["name"], value["parameters"]), end


HERMES, QWEN_CODER, LLAMA = HermesFormat(), QwenCoderFormat(), LlamaFormat()


def detect_format(tokenizer: Tokenizer) -> CallFormat | None:
    """Return the format in which the chat template shows earlier calls; None if it shows none, or in another one."""
    call = {"type": "function", "function": {"name": "probe_name", "arguments": {"probe_key": "probe_value"}}}
    messages = [{"role": "user", "content": "-"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    try:
        shown = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:  # templates raise what they like
        return None
    if "<function=probe_name>" in shown:
        return QWEN_CODER
    if re.search(r'<tool_call>\s*\{"name": "probe_name"', shown):
        return HERMES
    return LLAMA if re.search(r'\{"name": "probe_name", "parameters"', shown) else None


def read_reply(
    text: str, call_format: CallFormat | None, tools: Sequence[ToolSchema] = (), *, opened: bool = False
) -> Reply:
    """Read a completion's text. Without a format, or without tools, it has no calls.

    `opened` says that the prompt ended with `<think>`, so that the completion begins in its thoughts.
    """
    thoughts, ended, answer = text.partition(THOUGHT_END)
    if not ended:
        if opened or THOUGHT in text:
            error = CallError("unclosed_thought", f"the thoughts were not closed with {THOUGHT_END}")
            return Reply("", text.replace(THOUGHT, "", 1).strip(), error=error)
        thoughts, answer = "", text
    reasoning = thoughts.strip().removeprefix(THOUGHT).strip()
    if call_format is None or not tools:
        return Reply(answer.strip(), reasoning)
    parsed = call_format.parse(answer, tools)
    if isinstance(parsed, CallError):
        return Reply(answer.strip(), reasoning, error=parsed)
    outside, calls = parsed
    return Reply(outside.strip(), reasoning, tuple(calls))


def _as_dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _read_value(text: str, schema: Mapping[str, Any]) -> Any:
    if schema.get("type", "string") == "string":
        return text
    value = parse_json(text)
    return text if isinstance(value, CallError) else value
