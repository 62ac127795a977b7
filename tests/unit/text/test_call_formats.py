"""Completions are read in the three formats of tool calls; what cannot be read has a kind and stays text."""

from __future__ import annotations

import pytest

from core.text.call_formats import HERMES, LLAMA, QWEN_CODER, CallError, Reply, detect_format, read_reply
from core.text.tool_calls import ToolCall, ToolSchema
from tests.kit import train_tokenizer
from tests.unit.gateway.templates import FORMATS as EXPECTED
from tests.unit.gateway.templates import make_tokenizer

BY_NAME = {"hermes": HERMES, "qwen3_coder": QWEN_CODER, "llama3_json": LLAMA}
TOOL = ToolSchema(
    "search", "-", {"type": "object", "properties": {"query": {"type": "string"}, "count": {"type": "integer"}}}
)


@pytest.mark.parametrize("template", EXPECTED)
def test_the_format_is_that_of_the_chat_template(template):
    assert detect_format(make_tokenizer(template)) is BY_NAME[EXPECTED[template]]


def test_a_template_without_calls_has_no_format():
    assert detect_format(train_tokenizer("hello", 300)) is None


CALL = ToolCall("search", {"query": "a b", "count": 3})
READ: list[tuple[str, str, Reply]] = [
    ("hermes", "Hello.", Reply("Hello.")),
    (
        "hermes",
        'Look: <tool_call>\n{"name": "search", "arguments": {"query": "a b", "count": 3}}\n</tool_call> there',
        Reply("Look:  there", calls=(CALL,)),
    ),
    (
        "hermes",
        "<think>\nhm </think>\n\n"
        + '<tool_call>{"name": "search", "arguments": {"query": "a b", "count": 3}}</tool_call>' * 2,
        Reply("", "hm", (CALL, CALL)),
    ),
    ("hermes", "<think>\nopened by the prompt\n</think>\n\nHello.", Reply("Hello.", "opened by the prompt")),
    ("hermes", "<think>a</think>\n<think>b</think>Hello.", Reply("Hello.", "a\n\nb")),
    ("hermes", "<think>\n\n</think>\n\nWrite </think> behind it.", Reply("Write </think> behind it.")),
    ("hermes", "A thought is <think>so</think>.", Reply("A thought is <think>so</think>.")),
    (
        "qwen3_coder",
        "<tool_call>\n<function=search>\n<parameter=query>\na b\n</parameter>\n<parameter=count>\n3\n</parameter>\n"
        "</function>\n</tool_call>",
        Reply("", calls=(CALL,)),
    ),
    (
        "qwen3_coder",
        "<tool_call><function=search><parameter=query>3</parameter><parameter=count>many</parameter></function></tool_call>",
        Reply("", calls=(ToolCall("search", {"query": "3", "count": "many"}),), notes=("untyped_argument",)),
    ),
    ("llama3_json", '{"name": "search", "parameters": {"query": "a b", "count": 3}}', Reply("", calls=(CALL,))),
    (
        "llama3_json",
        '<|python_tag|>{"name": "search", "parameters": {"query": "a b", "count": 3}}; '
        '{"name": "search", "parameters": {"query": "a b", "count": 3}}',
        Reply("", calls=(CALL, CALL)),
    ),
    ("llama3_json", '{"answer": 42}', Reply('{"answer": 42}')),
    ("llama3_json", "Hello.", Reply("Hello.")),
]


@pytest.mark.parametrize(("name", "text", "expected"), READ)
def test_replies_are_read(name, text, expected):
    assert read_reply(text, BY_NAME[name], [TOOL]) == expected


BROKEN: list[tuple[str, str, str]] = [
    ("hermes", "<tool_call>{", "unclosed_call"),
    ("hermes", "hello</tool_call>", "stray_tag"),
    ("hermes", "<tool_call>{</tool_call>", "not_json"),
    ("hermes", "<think>for ever", "unclosed_thought"),
    ("qwen3_coder", "<tool_call>search</tool_call>", "not_object"),
    ("qwen3_coder", "<tool_call><function=></function></tool_call>", "missing_key"),
    ("qwen3_coder", "<tool_call><function=a>x</function></tool_call>", "extra_key"),
    ("qwen3_coder", "<tool_call><function=a><parameter=b>x</function></tool_call>", "unclosed_call"),
    (
        "qwen3_coder",
        "<tool_call><function=a><parameter=b>x</parameter><parameter=b>y</parameter></function></tool_call>",
        "duplicate_key",
    ),
    ("llama3_json", "<|python_tag|>{", "not_json"),
    ("llama3_json", '<|python_tag|>{"name": "a"}', "missing_key"),
    ("llama3_json", '<|python_tag|>{"parameters": {}}', "not_object"),
]


@pytest.mark.parametrize(("name", "text", "kind"), BROKEN)
def test_what_cannot_be_read_is_text_with_a_kind(name, text, kind):
    reply = read_reply(text, BY_NAME[name], [TOOL])
    assert isinstance(reply.error, CallError)
    assert (reply.error.kind, reply.calls) == (kind, ())
    if kind != "unclosed_thought":
        assert reply.text == text


@pytest.mark.parametrize("name", BY_NAME)
def test_without_tools_nothing_is_a_call(name):
    text = '<tool_call>{"name": "search", "arguments": {}}</tool_call>'
    assert read_reply(text, BY_NAME[name]) == Reply(text)


@pytest.mark.parametrize("properties", [None, [], {"query": True, "count": None}])
def test_a_schema_may_say_nothing_of_an_argument(properties):
    tool = ToolSchema("search", "-", {"properties": properties})
    text = "<tool_call><function=search><parameter=query>3</parameter></function></tool_call>"
    assert read_reply(text, QWEN_CODER, [tool]).calls == (ToolCall("search", {"query": "3"}),)


def test_thoughts_end_with_the_first_tag_and_inside_an_argument_nothing_is_a_tag():
    call = '<tool_call>{"name": "search", "arguments": {"query": "</think>"}}</tool_call>'
    reply = read_reply(f"<think>a</think>{call}", HERMES, [TOOL])
    assert (reply.reasoning, reply.calls) == ("a", (ToolCall("search", {"query": "</think>"}),))
    assert read_reply(call, HERMES, [TOOL]).calls == reply.calls
    cut = read_reply("<think>\nI wonder", HERMES, [TOOL])
    assert (cut.text, cut.reasoning, cut.error and cut.error.kind) == ("", "I wonder", "unclosed_thought")
