"""What the orchestrator writes: calls, messages, errors, in both styles."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.toolorchestra.formats import FORMATS, AssistantMessage
from core.text.tool_calls import CallError, ToolCall, ToolSchema
from tests.unit.agentic.toolorchestra.conftest import call


def schema(name: str, **properties: Any) -> ToolSchema:
    return ToolSchema(name, "", {"type": "object", "properties": properties, "required": list(properties)})


ALIAS = {"type": "string", "enum": ["expert-1", "expert-2"]}
TOOLS = [
    schema("search"),
    schema("call_expert", expert=ALIAS),
    schema("enhance_reasoning", model={"type": "string", "enum": ["reasoner-1"]}),
    schema("answer"),
    schema("cancel", order={"type": "string"}, items={"type": "integer"}),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" search", ToolCall("search", {})),
        (" call expert-2", ToolCall("call_expert", {"expert": "expert-2"})),
        ("call_expert expert=expert-2", ToolCall("call_expert", {"expert": "expert-2"})),
        (" enhance reasoner-1\n", ToolCall("enhance_reasoning", {"model": "reasoner-1"})),
        (" answer", ToolCall("answer", {})),
        (" cancel order=7 items=2", ToolCall("cancel", {"order": "7", "items": 2})),
        ("", "no_call"),
        (" fly", "unknown_tool"),
        (" search expert-1", "unknown_argument"),
        (" call", "missing_argument"),
        (" call expert-3", "unknown_choice"),
        (" call expert-1 expert-2", "unknown_choice"),
        (" cancel order=7 order=8 items=1", "duplicate_key"),
        (" cancel order=7 items=many", "argument_type"),
    ],
)
def test_compact_calls(text: str, expected: ToolCall | str) -> None:
    found = FORMATS["compact"].parse_call(text, TOOLS)
    assert (found.kind if isinstance(found, CallError) else found) == expected


HAND_OVER = call("call_expert", expert="expert-1")
CANCEL = call("cancel", order="7", items=1).partition("</think>")[2]


@pytest.mark.parametrize(
    ("style", "text", "expected"),
    [
        ("hermes", "<think>x</think> Hello!", AssistantMessage("Hello!")),
        ("hermes", "<message>Hello!</message>", AssistantMessage("Hello!")),
        ("hermes", "I greet. <message> Hello!</message>\n", AssistantMessage("Hello!")),
        ("hermes", "<message></message>", "no_call"),
        ("hermes", "<think>x</think>", "no_call"),
        ("hermes", "<think>x", "unclosed_thought"),
        ("hermes", HAND_OVER, [ToolCall("call_expert", {"expert": "expert-1"})]),
        ("hermes", CANCEL * 2, [ToolCall("cancel", {"order": "7", "items": 1})] * 2),
        ("hermes", HAND_OVER + CANCEL, "several_calls"),
        ("hermes", CANCEL + call("fly").partition("</think>")[2], "unknown_tool"),
        ("compact", " say Hello there", AssistantMessage("Hello there")),
        ("compact", " say ", "no_call"),
        ("compact", " call expert-1", [ToolCall("call_expert", {"expert": "expert-1"})]),
    ],
)
def test_actions(style: Any, text: str, expected: Any) -> None:
    found = FORMATS[style].parse_action(text, TOOLS)
    assert (found.kind if isinstance(found, CallError) else found) == expected


@given(st.text(), st.sampled_from(["hermes", "compact"]))
def test_no_text_raises(text: str, style: Any) -> None:
    assert isinstance(FORMATS[style].parse_call(text, TOOLS), ToolCall | CallError)
    assert isinstance(FORMATS[style].parse_action(text, TOOLS), AssistantMessage | list | CallError)
