"""What the orchestrator writes: calls, messages, errors, in each format."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.toolorchestra.formats import FORMATS, AssistantMessage, make_format
from core.text.tool_calls import CallError, ToolCall, ToolSchema
from tests.unit.agentic.toolorchestra.conftest import call
from tests.unit.gateway.templates import make_tokenizer


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
CANCELLED = {"order": "7", "items": 1}
CANCEL = call("cancel", order="7", items=1).partition("</think>")[2]


@pytest.mark.parametrize(
    ("form", "text", "expected"),
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
        ("compact", "say it is bad</think> say Hello", AssistantMessage("Hello")),
        ("compact", " call expert-1", [ToolCall("call_expert", {"expert": "expert-1"})]),
    ],
)
def test_actions(form: Any, text: str, expected: Any) -> None:
    found = FORMATS[form].parse_action(text, TOOLS)
    assert (found.kind if isinstance(found, CallError) else found) == expected


@pytest.mark.parametrize(
    ("template", "text", "expected"),
    [
        ("llama3", '{"name": "cancel", "parameters": {"order": "7", "items": 1}}', ToolCall("cancel", CANCELLED)),
        ("qwen3", CANCEL, ToolCall("cancel", CANCELLED)),
        ("qwen3", CANCEL.removesuffix("</tool_call>"), ToolCall("cancel", CANCELLED)),
        ("qwen3", CANCEL * 2, "several_calls"),
        ("qwen3", HAND_OVER.replace("expert-1", "expert-9"), "unknown_choice"),
        ("llama3", "Hello!", "no_call"),
        ("llama3", "", "no_call"),
    ],
)
def test_calls_of_the_models_own_template(template: str, text: str, expected: Any) -> None:
    counts = Counter[str]()
    form = make_format("calls", make_tokenizer(template), counts)
    found = form.parse_call(text, TOOLS)
    assert (found.kind if isinstance(found, CallError) else found) == expected
    assert counts == ({"unended_call": 1} if text.endswith("}}") and template == "qwen3" else {})
    if text == "Hello!":
        assert form.parse_action(text, TOOLS) == AssistantMessage("Hello!")


@given(st.text(), st.sampled_from(["hermes", "compact"]))
def test_no_text_raises(text: str, form: Any) -> None:
    assert isinstance(FORMATS[form].parse_call(text, TOOLS), ToolCall | CallError)
    assert isinstance(FORMATS[form].parse_action(text, TOOLS), AssistantMessage | list | CallError)
