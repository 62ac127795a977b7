"""This module parses tool calls of the form `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen).

Every text gives calls or a `CallError`: its kind is counted, and its message tells the model what to write instead.
Nothing is repaired by guessing. Parsing takes time linear in the length of the text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Fault = Literal[
    "no_call",
    "unclosed_thought",
    "unclosed_call",
    "stray_tag",
    "not_json",
    "not_object",
    "duplicate_key",
    "missing_key",
    "extra_key",
    "name_not_text",
    "arguments_not_object",
    "arguments_as_text",
    "several_calls",
    "unknown_tool",
    "missing_argument",
    "unknown_argument",
    "argument_type",
    "unknown_choice",
]
FAULTS: tuple[Fault, ...] = get_args(Fault)

OPEN, CLOSE, THOUGHT, THOUGHT_END = "<tool_call>", "</tool_call>", "<think>", "</think>"
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Names a tool and gives its arguments."""

    name: str
    arguments: Mapping[str, Any]

    def render(self) -> str:
        """Return the JSON between the tags."""
        return json.dumps({"name": self.name, "arguments": dict(self.arguments)}, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class CallError:
    """Says why a text has no usable call; `message` is for the model that wrote it."""

    kind: Fault
    message: str


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """Describes a function that a model may call; `parameters` is a JSON schema of type object.

    `strict` is a client's wish that arguments are forced to fit. Nothing here forces them, and no template shows it.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = field(default=False, compare=False)

    def to_openai(self) -> dict[str, Any]:
        """Return the form that chat templates and OpenAI's protocol use."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


def strip_thinking(text: str) -> str | CallError:
    """Return the text after the last `</think>`, or an error when the model did not stop thinking."""
    answer = text.rpartition(THOUGHT_END)[2]
    if THOUGHT in answer:
        return CallError("unclosed_thought", f"the thoughts were not closed with {THOUGHT_END}; think less, then act")
    return answer.strip()


def parse_calls(text: str, *, several: bool = False) -> list[ToolCall] | CallError:
    """Parse the calls of a text: exactly one, or with `several` at least one. Text outside the tags is ignored."""
    answer = strip_thinking(text)
    if isinstance(answer, CallError):
        return answer
    split = split_calls(answer)
    if isinstance(split, CallError):
        return split
    if not split[1]:
        return CallError("no_call", f'write one call: {OPEN}{{"name": "TOOL", "arguments": {{...}}}}{CLOSE}')
    calls: list[ToolCall] = []
    for body in split[1]:
        call = parse_call(body)
        if isinstance(call, CallError):
            return call
        calls.append(call)
    if len(calls) > 1 and not several:
        return CallError("several_calls", f"there are {len(calls)} calls; write one at a time")
    return calls


def split_calls(text: str) -> tuple[str, list[str]] | CallError:
    """Return the text outside of the tags, and what stands between each pair of them."""
    outside, *parts = text.split(OPEN)
    bodies: list[str] = []
    for part in parts:
        body, closed, rest = part.partition(CLOSE)
        if not closed:
            return CallError("unclosed_call", f"a {OPEN} was not closed with {CLOSE}")
        bodies.append(body)
        outside += rest
    if CLOSE in outside:
        return CallError("stray_tag", f"there is a {CLOSE} without {OPEN}")
    return outside, bodies


def parse_call(body: str) -> ToolCall | CallError:
    """Parse the call between two tags."""
    value = parse_json(body)
    if isinstance(value, CallError):
        return value
    if not isinstance(value, dict):
        return CallError("not_object", "between the tags must be one JSON object with the keys name and arguments")
    if missing := [key for key in ("name", "arguments") if key not in value]:
        return CallError("missing_key", f"the key {missing[0]} is missing")
    if extra := [key for key in value if key not in ("name", "arguments")]:
        return CallError("extra_key", f"the key {extra[0][:50]!r} does not belong there; only name and arguments do")
    if not isinstance(value["name"], str):
        return CallError("name_not_text", "name must be a string")
    if isinstance(value["arguments"], str):
        return CallError("arguments_as_text", "arguments must be a JSON object itself, not a string that holds one")
    if not isinstance(value["arguments"], dict):
        return CallError("arguments_not_object", "arguments must be a JSON object")
    return ToolCall(value["name"], value["arguments"])


def parse_json(text: str) -> Any | CallError:
    """Parse JSON whose keys are unique and whose values can be written again."""
    try:
        value = json.loads(text, object_pairs_hook=_check_keys, parse_constant=_reject_constant)
        # JSON allows half a surrogate pair, which is no text, and 1e999, which is no number.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except _DuplicateKey as error:
        return CallError("duplicate_key", f"the key {error} occurs twice")
    except (ValueError, RecursionError) as error:
        return CallError("not_json", f"between the tags is no JSON ({error})"[:200])
    return value


def check_call(call: ToolCall, schemas: Sequence[ToolSchema]) -> CallError | None:
    """Check the tool of a well-formed call, and the names, types and choices of its arguments.

    Returns None when they are right. A tool checks nested values itself.
    """
    schema = next((schema for schema in schemas if schema.name == call.name), None)
    if schema is None:
        known = ", ".join(schema.name for schema in schemas)
        return CallError("unknown_tool", f"there is no tool {call.name[:50]!r}; the tools are {known}")
    properties = schema.parameters.get("properties", {})
    for name in schema.parameters.get("required", ()):
        if name not in call.arguments:
            return CallError("missing_argument", f"{call.name} needs the argument {name}")
    for name, value in call.arguments.items():
        if name not in properties:
            known = ", ".join(properties) or "none"
            return CallError("unknown_argument", f"{call.name} has no argument {name[:50]!r}; it has {known}")
        if not _has_type(value, properties[name].get("type")):
            return CallError("argument_type", f"{name} of {call.name} must be of type {properties[name]['type']}")
        choices = properties[name].get("enum")
        if choices is not None and value not in choices:
            shown = ", ".join(map(str, choices))
            return CallError(
                "unknown_choice", f"{name} of {call.name} must be one of {shown}; it was {str(value)[:50]!r}"
            )
    return None


class _DuplicateKey(ValueError):
    pass


def _check_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for name, value in pairs:
        if name in mapping:
            raise _DuplicateKey(repr(name)[:50])
        mapping[name] = value
    return mapping


def _reject_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON value")


def _has_type(value: Any, names: Any) -> bool:
    """Say whether `value` has a JSON type of these names, one or a list. An unknown name fits every value."""
    names = names if isinstance(names, list) else [names]
    if any(name not in _TYPES for name in names):
        return True
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, _TYPES[name]) for name in names)
