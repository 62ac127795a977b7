"""How the orchestrator writes what it does, as a checked call, a message to the user, or a typed error.

| | hermes | compact |
|---|---|---|
| call | `<tool_call>{"name": "search", "arguments": {"model": "search-2"}}</tool_call>` | ` search search-2` |
| the same, if one tool alone has that expert | | ` search-2` |
| expert | `<tool_call>{"name": "call_expert", "arguments": {"expert": "expert-2"}}</tool_call>` | ` call expert-2` |
| domain tool | `<tool_call>{"name": "cancel", "arguments": {"order": "7"}}</tool_call>` | ` cancel order=7` |
| message | what is in `<message>...</message>`, or any text without a call | ` say text` |
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentic.toolorchestra.config import Style
from core.text.tool_calls import CLOSE, OPEN, CallError, ToolCall, ToolSchema, check_call, parse_calls, strip_thinking

CALL_EXPERT = "call_expert"


@dataclass(frozen=True, slots=True)
class Speech:
    """What the agent says to the user."""

    text: str


Action = Speech | Sequence[ToolCall]


class Format(Protocol):
    def call(self, text: str, tools: Sequence[ToolSchema]) -> ToolCall | CallError:
        """The one call of a `qa` turn."""
        ...

    def action(self, text: str, tools: Sequence[ToolSchema]) -> Action | CallError:
        """A `func_call` turn: a message to the user, one or several domain calls, or one call of an expert."""
        ...


class Hermes:
    def call(self, text: str, tools: Sequence[ToolSchema]) -> ToolCall | CallError:
        calls = parse_calls(text)
        return calls if isinstance(calls, CallError) else check_call(calls[0], tools) or calls[0]

    def action(self, text: str, tools: Sequence[ToolSchema]) -> Action | CallError:
        said = strip_thinking(text)
        if isinstance(said, CallError):
            return said
        if OPEN not in said and CLOSE not in said:
            tagged = said.partition("<message>")[2].partition("</message>")[0]
            message = (tagged if "<message>" in said else said).strip()
            return Speech(message) if message else CallError("no_call", "say something to the user, or call a tool")
        calls = parse_calls(said, several=True)
        if isinstance(calls, CallError):
            return calls
        if len(calls) > 1 and any(call.name == CALL_EXPERT for call in calls):
            return CallError("several_calls", f"{CALL_EXPERT} hands over the whole turn; call nothing beside it")
        return next((error for call in calls if (error := check_call(call, tools))), calls)


class Compact:
    SHORT: Mapping[str, str] = {"call": CALL_EXPERT, "enhance": "enhance_reasoning"}

    def call(self, text: str, tools: Sequence[ToolSchema]) -> ToolCall | CallError:
        said = strip_thinking(text)
        if isinstance(said, CallError):
            return said
        word, *rest = said.split() or [""]
        if not word:
            return CallError("no_call", "write the name of a tool")
        name = self.SHORT.get(word, word)
        if not rest and (owner := _only_tool_with(name, tools)):
            name, rest = owner, [word]
        schema = next((tool for tool in tools if tool.name == name), None)
        properties = schema.parameters.get("properties", {}) if schema else {}
        if len(properties) == 1 and rest and "=" not in rest[0]:
            (only,) = properties
            call = ToolCall(name, {only: _value(" ".join(rest), properties[only])})
        else:
            pairs = [word.partition("=") for word in rest]
            call = ToolCall(name, {key: _value(value, properties.get(key, {})) for key, _, value in pairs})
            if len(call.arguments) < len(pairs):
                return CallError("duplicate_key", f"an argument of {name[:50]} occurs twice")
        return check_call(call, tools) or call

    def action(self, text: str, tools: Sequence[ToolSchema]) -> Action | CallError:
        word, _, said = text.strip().partition(" ")
        if word == "say":
            return Speech(said.strip()) if said.strip() else CallError("no_call", "say something to the user")
        call = self.call(text, tools)
        return call if isinstance(call, CallError) else [call]


def _only_tool_with(expert: str, tools: Sequence[ToolSchema]) -> str | None:
    """The tool that `expert` may be named for, if it is one alone: then the expert's name says it all."""
    having = [
        tool.name
        for tool in tools
        if any(expert in schema.get("enum", ()) for schema in tool.parameters.get("properties", {}).values())
    ]
    return having[0] if len(having) == 1 else None


FORMATS: Mapping[Style, Format] = {"hermes": Hermes(), "compact": Compact()}


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """An argument that is not meant to be text is read as JSON, where it is JSON."""
    if schema.get("type", "string") == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
