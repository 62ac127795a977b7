"""This module parses tool calls of the form `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen).

`parse_calls` gives calls or a `CallError`: its kind is counted, and its message tells the model what to write instead.
Nothing is repaired by guessing. A tag opens or closes a thought or a call only where one may begin or end: inside of an
argument nothing is a tag. Parsing takes time linear in the length of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from core.text.tokenizer import Ids, Tokenizer, encode_text

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

OPEN, CLOSE, THOUGHT, THOUGHT_END = "<tool_call>", "</tool_call>", "<think>", "</think>"

OPENING_TOKENS = 16  # at the end of a prompt: a thought that was opened there, or left empty, is looked for in them

Note = Literal["unopened_call", "unended_call", "unended_argument", "untyped_argument"]
"""Names how a call was written that could be read nevertheless: without its opening tag, or the closing tags at the end
of the reply; or with an argument that fits nothing that the tool's schema allows, which stays text."""

OPENING = re.compile(rf"{THOUGHT}\s*(?:{THOUGHT_END}\s*)?\Z")
_THOUGHT = re.compile(r"\s*+(?:<think>\s*+)++")
_SPACES = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Names a tool and gives its arguments. `shown_id` is the id that the model wrote, where its template shows ids."""

    name: str
    arguments: Mapping[str, Any]
    shown_id: str = field(default="", compare=False)

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


def make_schema(name: str, description: str, required: Mapping[str, str], **optional: str) -> ToolSchema:
    """Make a schema from the arguments and their types."""
    properties = {argument: {"type": kind} for argument, kind in {**required, **optional}.items()}
    return ToolSchema(name, description, {"type": "object", "properties": properties, "required": list(required)})


def split_thoughts(text: str) -> tuple[list[str], str | None]:
    """Split a reply into the thoughts that it begins with and the answer; None if a thought does not end.

    `text` begins with what the end of the prompt has opened (Renderer.find_opening). Only what was opened is closed.
    """
    thoughts: list[str] = []
    place = 0
    while opened := _THOUGHT.match(text, place):
        end = text.find(THOUGHT_END, opened.end())
        thoughts.append(text[opened.end() : end if end >= 0 else None].strip())
        if end < 0:
            return thoughts, None
        place = end + len(THOUGHT_END)
    return thoughts, text[place:]


def find_opening(tokenizer: Tokenizer, prompt: Ids) -> str:
    """Return the text at the end of a prompt that belongs to the reply: a thought that it opens, or an empty one."""
    found = OPENING.search(tokenizer.decode(prompt[-OPENING_TOKENS:]))
    return found[0] if found else ""


def count_thought_ids(tokenizer: Tokenizer, ids: Ids, opening: str = "") -> int | None:
    """Return how many ids behind `opening` are thoughts, with their end tags and spaces; None if one does not end."""
    thoughts, answer = split_thoughts(opening + tokenizer.decode(ids))
    ends = len(thoughts) - opening.count(THOUGHT_END)
    if answer is None or ends < 1:
        return None if answer is None else 0
    # The number of tags only grows, so the first position with all of them is found by halving.
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        whole = tokenizer.decode(ids[:middle]).count(THOUGHT_END) >= ends
        low, high = (low, middle) if whole else (middle + 1, high)
    while low < len(ids) and not tokenizer.decode([ids[low]]).strip():
        low += 1
    return low


def find_answer(tokenizer: Tokenizer, ids: Ids, prompt: Ids = ()) -> Ids | None:
    """Return the ids behind the thoughts of a reply, `ids` itself without any; None if a thought does not end."""
    if not (count := count_thought_ids(tokenizer, ids, find_opening(tokenizer, prompt))):
        return None if count is None else ids
    # Where the tag is text, its last token may hold the first word of the answer, such as `>The`.
    glued = tokenizer.decode(ids[:count]).rpartition(THOUGHT_END)[2].strip()
    return (*encode_text(tokenizer, glued), *ids[count:])


def drop_opened_thought(text: str) -> str:
    """Return a service's reply without a thought that its chat template opened, which a service does not show."""
    return text if split_thoughts(text)[0] else text.rpartition(THOUGHT_END)[2]


def strip_thinking(text: str) -> str | CallError:
    """Return the answer of a reply, or an error when the model did not stop thinking."""
    answer = split_thoughts(text)[1]
    if answer is None:
        return CallError("unclosed_thought", f"the thoughts were not closed with {THOUGHT_END}; think less, then act")
    return answer.strip()


def parse_calls(text: str, *, several: bool = False) -> list[ToolCall] | CallError:
    """Parse the calls of a text: exactly one, or with `several` at least one. Text outside the tags is ignored."""
    answer = strip_thinking(text)
    if isinstance(answer, CallError):
        return answer
    read = read_calls(answer)
    if isinstance(read, CallError):
        return read
    _, calls, notes = read
    if notes:
        return CallError("unclosed_call", f"a {OPEN} was not closed with {CLOSE}")
    if not calls:
        return CallError("no_call", f'write one call: {OPEN}{{"name": "TOOL", "arguments": {{...}}}}{CLOSE}')
    if len(calls) > 1 and not several:
        return CallError("several_calls", f"there are {len(calls)} calls; write one at a time")
    return calls


def read_calls(text: str) -> tuple[str, list[ToolCall], list[Note]] | CallError:
    """Return the text outside of the calls, the calls, and what was not written as it should be.

    JSON says where a call ends; then must stand the tag. Where that is not so, the tags say what is wrong.
    """
    outside, calls, place = "", list[ToolCall](), 0
    while (start := text.find(OPEN, place)) >= 0:
        outside += text[place:start]
        read = decode_json(text, start + len(OPEN))
        if isinstance(read, CallError):
            return _explain(text, read)
        call = _check_form(read[0])
        if isinstance(call, CallError):
            return _explain(text, call)
        calls.append(call)
        place = _skip_spaces(text, read[1])
        if place == len(text):
            return (outside, calls, ["unended_call"]) if CLOSE not in outside else _explain(text)
        if not text.startswith(CLOSE, place):
            return _explain(text)
        place += len(CLOSE)
    outside += text[place:]
    return (outside, calls, []) if CLOSE not in outside else _explain(text)


def _explain(text: str, error: CallError | None = None) -> CallError:
    """Return why a text that has no readable calls has none; `error` is what is wrong if the tags are right."""
    outside, *parts = text.split(OPEN)
    first: CallError | None = None
    for part in parts:
        body, closed, rest = part.partition(CLOSE)
        if not closed:
            return CallError("unclosed_call", f"a {OPEN} was not closed with {CLOSE}")
        outside += rest
        if first is None:
            call = parse_call(body)
            first = call if isinstance(call, CallError) else None
    if CLOSE in outside:
        return CallError("stray_tag", f"there is a {CLOSE} without {OPEN}")
    return first or error or CallError("stray_tag", f"behind a call must stand {CLOSE}")


def parse_call(body: str) -> ToolCall | CallError:
    """Parse the call between two tags."""
    value = parse_json(body)
    return value if isinstance(value, CallError) else _check_form(value)


def _check_form(value: Any) -> ToolCall | CallError:
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
    decoded = decode_json(text)
    if isinstance(decoded, CallError):
        return decoded
    if (end := _skip_spaces(text, decoded[1])) < len(text):
        return CallError("not_json", _NOT_JSON.format(json.JSONDecodeError("Extra data", text, end))[:200])
    return decoded[0]


def decode_json(text: str, start: int = 0) -> tuple[Any, int] | CallError:
    """Decode the JSON at `start`, which may go on with other text; return its value and where it ends."""
    try:
        value, end = _DECODER.raw_decode(text, _skip_spaces(text, start))
        # JSON allows half a surrogate pair, which is no text, and 1e999, which is no number.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except _DuplicateKey as error:
        return CallError("duplicate_key", f"the key {error} occurs twice")
    except (ValueError, RecursionError) as error:
        return CallError("not_json", _NOT_JSON.format(error)[:200])
    return value, end


def _skip_spaces(text: str, place: int) -> int:
    found = _SPACES.match(text, place)
    return found.end() if found else place


def check_call(call: ToolCall, schemas: Sequence[ToolSchema]) -> CallError | None:
    """Check the tool of a well-formed call, and the names, types and choices of its arguments.

    Returns None when they are right. A tool checks nested values itself.
    """
    from core.text.schemas import NAMING, find_argument, fits  # here, because a conversation imports this file

    schema = next((schema for schema in schemas if schema.name == call.name), None)
    if schema is None:
        known = ", ".join(schema.name for schema in schemas)
        return CallError("unknown_tool", f"there is no tool {call.name[:50]!r}; the tools are {known}")
    parameters, required = schema.parameters, schema.parameters.get("required")
    for name in required if isinstance(required, list) else ():  # a schema from elsewhere may be none
        if isinstance(name, str) and name not in call.arguments:
            return CallError("missing_argument", f"{call.name} needs the argument {name}")
    for name, value in call.arguments.items():
        argument = find_argument(name, parameters, parameters)
        if argument is None and parameters.keys() & NAMING:  # a schema that names no arguments takes any
            properties = parameters.get("properties")
            known = ", ".join(properties if isinstance(properties, dict) else ()) or "none"
            return CallError("unknown_argument", f"{call.name} has no argument {name[:50]!r}; it has {known}")
        if fits(value, argument, parameters):
            continue
        choices = argument.get("enum") if isinstance(argument, dict) else None
        if choices and fits(value, {**argument, "enum": [value]}, parameters):
            shown = ", ".join(map(str, choices))
            return CallError(
                "unknown_choice", f"{name} of {call.name} must be one of {shown}; it was {str(value)[:50]!r}"
            )
        wanted = argument["type"] if isinstance(argument, dict) and "type" in argument else json.dumps(argument)[:200]
        return CallError("argument_type", f"{name} of {call.name} must be of type {wanted}")
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


_NOT_JSON = "between the tags is no JSON ({})"
_DECODER = json.JSONDecoder(object_pairs_hook=_check_keys, parse_constant=_reject_constant)
