"""Parses what the orchestrator writes into a checked call, a message to the user, or an error with a name.

| | hermes | compact |
|---|---|---|
| call | `<tool_call>{"name": "search", "arguments": {"model": "search-2"}}</tool_call>` | ` search search-2` |
| the same, if one tool alone has that expert | | ` search-2` |
| expert | `<tool_call>{"name": "call_expert", "arguments": {"expert": "expert-2"}}</tool_call>` | ` call expert-2` |
| domain tool | `<tool_call>{"name": "cancel", "arguments": {"order": "7"}}</tool_call>` | ` cancel order=7` |
| message | what is in `<message>...</message>`, or any text without a call | ` say text` |
| thought before it | `<think>...</think>` | all up to `</think>` |

`calls` is as `hermes`, but a call is written as the model's own chat template writes calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentic.toolorchestra.config import Format
from core.text.call_formats import CallFormat, need_format, read_reply
from core.text.schemas import read_value
from core.text.tokenizer import Tokenizer
from core.text.tool_calls import CLOSE, OPEN, CallError, ToolCall, ToolSchema, check_call, parse_calls, strip_thinking

CALL_EXPERT = "call_expert"


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """Holds what the agent writes to the user."""

    text: str


Action = AssistantMessage | Sequence[ToolCall]


class HermesCallFormat:
    def parse_call(self, text: str, tools: Sequence[ToolSchema]) -> ToolCall | CallError:
        """Parse a `qa` turn: one call."""
        calls = parse_calls(text)
        return calls if isinstance(calls, CallError) else check_call(calls[0], tools) or calls[0]

    def parse_action(self, text: str, tools: Sequence[ToolSchema]) -> Action | CallError:
        """Parse a `func_call` turn: a message to the user, one or several domain calls, or one call of an expert."""
        visible = strip_thinking(text)
        if isinstance(visible, CallError):
            return visible
        if OPEN not in visible and CLOSE not in visible:
            tagged = visible.partition("<message>")[2].partition("</message>")[0]
            message = (tagged if "<message>" in visible else visible).strip()
            if not message:
                return CallError("no_call", "say something to the user, or call a tool")
            return AssistantMessage(message)
        calls = parse_calls(visible, several=True)
        return calls if isinstance(calls, CallError) else _check_calls(calls, tools)


class TemplateCallFormat:
    def __init__(self, call_format: CallFormat, counts: Counter[str]):
        self._call_format = call_format
        self._counts = counts

    def parse_call(self, text: str, tools: Sequence[ToolSchema]) -> ToolCall | CallError:
        action = self.parse_action(text, tools)
        if isinstance(action, CallError):
            return action
        if isinstance(action, AssistantMessage):
            return CallError("no_call", "call a tool")
        return action[0] if len(action) == 1 else CallError("several_calls", "call one tool in a turn")

    def parse_action(self, text: str, tools: Sequence[ToolSchema]) -> Action | CallError:
        reply = read_reply(text, self._call_format, tools)
        self._counts.update(reply.notes)
        if reply.error is not None:
            return reply.error
        if not reply.calls and not reply.text:
            return CallError("no_call", "say something to the user, or call a tool")
        return _check_calls(reply.calls, tools) if reply.calls else AssistantMessage(reply.text)


class CompactCallFormat:
    SHORT: Mapping[str, str] = {"call": CALL_EXPERT, "enhance": "enhance_reasoning"}

    def parse_call(self, text: str, tools: Sequence[ToolSchema]) -> ToolCall | CallError:
        word, *rest = text.rpartition("</think>")[2].split() or [""]
        if not word:
            return CallError("no_call", "write the name of a tool")
        name = self.SHORT.get(word, word)
        if not rest and (owner := _only_tool_with(name, tools)):
            name, rest = owner, [word]
        schema: Mapping[str, Any] = next((tool.parameters for tool in tools if tool.name == name), {})
        properties = schema.get("properties", {})
        if len(properties) == 1 and rest and "=" not in rest[0]:
            (only,) = properties
            call = ToolCall(name, {only: read_value(" ".join(rest), properties[only], schema)[0]})
        else:
            pairs = [word.partition("=") for word in rest]
            call = ToolCall(name, {key: read_value(text, properties.get(key), schema)[0] for key, _, text in pairs})
            if len(call.arguments) < len(pairs):
                return CallError("duplicate_key", f"an argument of {name[:50]} occurs twice")
        return check_call(call, tools) or call

    def parse_action(self, text: str, tools: Sequence[ToolSchema]) -> Action | CallError:
        word, _, rest = text.rpartition("</think>")[2].strip().partition(" ")
        if word == "say":
            message = rest.strip()
            return AssistantMessage(message) if message else CallError("no_call", "say something to the user")
        call = self.parse_call(text, tools)
        return call if isinstance(call, CallError) else [call]


def _only_tool_with(expert: str, tools: Sequence[ToolSchema]) -> str | None:
    """Return the only tool that has this expert. If there are several tools, or none, return None."""
    owners = [
        tool.name
        for tool in tools
        if any(expert in schema.get("enum", ()) for schema in tool.parameters.get("properties", {}).values())
    ]
    return owners[0] if len(owners) == 1 else None


def _check_calls(calls: Sequence[ToolCall], tools: Sequence[ToolSchema]) -> Sequence[ToolCall] | CallError:
    if len(calls) > 1 and any(call.name == CALL_EXPERT for call in calls):
        return CallError("several_calls", f"{CALL_EXPERT} hands over the whole turn; call nothing beside it")
    return next((error for call in calls if (error := check_call(call, tools))), calls)


ActionFormat = HermesCallFormat | TemplateCallFormat | CompactCallFormat

FORMATS: Mapping[Format, ActionFormat] = {"hermes": HermesCallFormat(), "compact": CompactCallFormat()}


def make_format(name: Format, tokenizer: Tokenizer, counts: Counter[str]) -> ActionFormat:
    """Return the format of a recipe; `counts` gets the notes on calls that the template's form let pass.

    Raises RecipeError if it is `calls` and the chat template shows no calls.
    """
    if name != "calls":
        return FORMATS[name]
    return TemplateCallFormat(need_format("toolorchestra.format", tokenizer), counts)
