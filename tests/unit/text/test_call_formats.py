"""Completions are read in the five formats of tool calls; what cannot be read has a kind and stays text."""

from __future__ import annotations

import pytest

from core.options import RecipeError
from core.text.call_formats import (
    CallError,
    Reply,
    detect_format,
    need_format,
    read_glm,
    read_hermes,
    read_kimi,
    read_llama,
    read_reply,
)
from core.text.qwen_coder import read_qwen_coder
from core.text.tool_calls import ToolCall, ToolSchema, check_call
from tests.kit import train_tokenizer
from tests.unit.gateway.templates import FORMATS as EXPECTED
from tests.unit.gateway.templates import make_tokenizer

BY_NAME = {
    "hermes": read_hermes, "qwen3_coder": read_qwen_coder, "llama3_json": read_llama, "glm": read_glm, "kimi": read_kimi
}  # fmt: skip
PROPERTIES = {"query": {"type": "string"}, "count": {"type": "integer"}}
TOOL = ToolSchema("search", "-", {"type": "object", "properties": PROPERTIES})


@pytest.mark.parametrize(("template", "name"), {**EXPECTED, "glm": "glm", "kimi": "kimi"}.items())
def test_the_format_is_that_of_the_chat_template(template, name):
    assert detect_format(make_tokenizer(template)) is BY_NAME[name]


def test_a_template_without_calls_has_no_format():
    assert detect_format(train_tokenizer("hello", 300)) is None
    for key, fix in ((None, "^model.path: the .*; take a model"), ("x.format", "^x.format is calls, .*; set x.format")):
        with pytest.raises(RecipeError, match=fix):
            need_format(key, train_tokenizer("hello", 300))


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
    (
        "glm",
        "\n<think>hm</think>\nLook:\n<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>a b</arg_value>\n"
        "<arg_key>count</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        Reply("Look:", "hm", (CALL,)),
    ),
    (
        "glm",
        "<tool_call>search<arg_key>query</arg_key><arg_value>a b</arg_value><arg_key>count</arg_key>"
        "<arg_value>3</arg_value></tool_call><tool_call>search</tool_call>",
        Reply("", calls=(CALL, ToolCall("search", {}))),
    ),
    ("glm", "A key is <arg_key>.", Reply("A key is <arg_key>.")),
    (
        "kimi",
        "<think>hm</think>Look:<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0"
        '<|tool_call_argument_begin|>{"query": "a b", "count": 3}<|tool_call_end|><|tool_call_begin|>functions.search:1'
        '<|tool_call_argument_begin|>{"query": "<|tool_call_end|>"}<|tool_call_end|><|tool_calls_section_end|>',
        Reply("Look:", "hm", (CALL, ToolCall("search", {"query": "<|tool_call_end|>"}))),
    ),
    ("llama3_json", '{"answer": 42}', Reply('{"answer": 42}')),
    ("llama3_json", "Hello.", Reply("Hello.")),
]


@pytest.mark.parametrize(("name", "text", "expected"), READ)
def test_replies_are_read(name, text, expected):
    assert read_reply(text, BY_NAME[name], [TOOL]) == expected


GLM_CALL = "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"
KIMI_CALL = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|>"
)
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
    ("glm", "<tool_call>", "not_object"),
    ("glm", "hello</tool_call>", "stray_tag"),
    ("glm", "<tool_call>a b</tool_call>", "not_object"),
    ("glm", "<tool_call>a<arg_key>b</arg_key>x</tool_call>", "extra_key"),
    ("glm", "<tool_call>a<arg_key>b</arg_key><arg_value>x</arg_value></tool_call>So.", "unclosed_call"),
    (
        "glm",
        "<tool_call>a<arg_key>b</arg_key><arg_value>x</arg_value><arg_key>b</arg_key><arg_value>y</arg_value></tool_call>",
        "duplicate_key",
    ),
    ("glm", GLM_CALL.format(2 * GLM_CALL.format("hay")), "unclosed_call"),  # or a call whose value holds two
    ("kimi", KIMI_CALL.format('{"a": 1'), "not_json"),
    ("kimi", KIMI_CALL.partition("{}")[0] + '{"a":', "unclosed_call"),
    ("kimi", KIMI_CALL.format("[1]"), "arguments_not_object"),
    ("kimi", KIMI_CALL.format('{"a": 1, "a": 2}'), "duplicate_key"),
    ("kimi", KIMI_CALL.format("{} and more"), "stray_tag"),
    ("kimi", KIMI_CALL.replace("functions.", ""), "not_object"),
    ("kimi", "<|tool_calls_section_begin|><|tool_calls_section_end|>", "no_call"),
    ("kimi", KIMI_CALL.partition("begin|>")[2].format("{}"), "stray_tag"),
    ("kimi", KIMI_CALL.format("{}") * 2, "stray_tag"),
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


def parameter(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>\n"


def function(*parameters: str, name: str = "search") -> str:
    return f"<function={name}>\n{''.join(parameters)}</function>"


HAY = parameter("query", "hay")
EXAMPLE = f"<tool_call>\n{function(HAY, parameter('count', '3'))}\n</tool_call>"


@pytest.mark.parametrize(
    ("name", "text", "notes"),
    [
        ("qwen3_coder", f"{function(HAY)}\n</tool_call>", ("unopened_call",)),
        ("qwen3_coder", f"I look.\n{function(HAY)}", ("unopened_call",)),
        ("qwen3_coder", f"<tool_call>\n{function(HAY)}\n", ("unended_call",)),
        ("qwen3_coder", f"<tool_call>\n<function=search>\n{HAY}", ("unended_call",)),
        ("qwen3_coder", "<tool_call>\n<function=search>\n<parameter=query>\nhay\n", ("unended_argument",)),
        ("qwen3_coder", "<function=search>\n<parameter=query>\nhay", ("unopened_call", "unended_argument")),
        ("hermes", '<tool_call>\n{"name": "search", "arguments": {"query": "hay"}}\n', ("unended_call",)),
        ("glm", GLM_CALL.format("hay").removesuffix("\n</tool_call>"), ("unended_call",)),
        ("glm", GLM_CALL.partition("{}")[0] + "hay", ("unended_argument",)),
        ("kimi", KIMI_CALL.format('{"query": "hay"}').partition("<|tool_call_end|>")[0], ("unended_call",)),
        ("kimi", KIMI_CALL.format('{"query": "hay"}').partition("<|tool_calls_section_end|>")[0], ("unended_call",)),
        ("llama3_json", 'I look. <|python_tag|>{"name": "search", "parameters": {"query": "hay"}}', ()),
    ],
)
def test_a_call_without_its_tags_is_read_and_told(name, text, notes):
    reply = read_reply(text, BY_NAME[name], [TOOL])
    assert (reply.calls, reply.notes) == ((ToolCall("search", {"query": "hay"}),), notes)
    assert reply.text == ("I look." if "I look." in text else "")


@pytest.mark.parametrize(
    "value",
    [
        *("</parameter>", "</function>", "</tool_call>", "<tool_call>", "<function=search>", "<parameter=count>"),
        *("</think>", "<think>", EXAMPLE, f"a\n{EXAMPLE}\nb\n{EXAMPLE}\nc", function(HAY, parameter("count", "3"))),
        *(EXAMPLE[:40], EXAMPLE[-40:], "\n</parameter>", "</parameter></function></tool_call>", "\nhay\n", ""),
    ],
)
def test_a_value_of_qwen3_coder_may_hold_any_tag(value):
    call = f"<tool_call>\n{function(parameter('query', value))}\n</tool_call>"
    reply = read_reply(f"{call}\n{call}", read_qwen_coder, [TOOL])
    assert reply == Reply("", calls=(ToolCall("search", {"query": value}),) * 2)


@pytest.mark.parametrize(
    "value",
    ["</arg_value>", "</tool_call>", "<tool_call>", "<arg_key>count</arg_key>", GLM_CALL, GLM_CALL + " x", " a\n"],
)
def test_a_value_of_glm_may_hold_any_tag(value):
    reply = read_reply(2 * GLM_CALL.format(value), read_glm, [TOOL])
    assert reply == Reply("", calls=(ToolCall("search", {"query": value}),) * 2)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (function(HAY, name="serch"), "unknown_tool"),
        (f"<tool_call>\n{function(HAY, parameter('limit', '3'))}\n</tool_call>", "unknown_argument"),  # or of the text
        ("<tool_call><function=search><parameter=query>1<parameter=count>2</parameter></function>", "unclosed_call"),
        (
            f"<tool_call>\n<function=search>\n<parameter=query>\n1\n{parameter('count', '2')}</function>",
            "unclosed_call",
        ),
        (f"<tool_call>\n{function(parameter('query', EXAMPLE[12:]))}\n</tool_call>", ""),
        (f"<tool_call>\n{function(parameter('query', EXAMPLE[30:]))}\n</tool_call>", "unclosed_call"),
    ],
)
def test_what_may_mean_two_things_has_a_name(text, kind):
    reply = read_reply(text, read_qwen_coder, [TOOL])
    assert (reply.error.kind if reply.error else "") == kind


@pytest.mark.parametrize("text", ['{"name": "search", "parameters": {', '{"type": "function", "name": "search"}'])
def test_a_call_of_llama_that_names_a_tool_and_is_broken_is_told(text):
    reply = read_reply(text, read_llama, [TOOL])
    assert (reply.text, reply.error is None) == (text, False)


INT, TEXT, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}
THING = {"$ref": "#/$defs/thing"}
DEFS = {"thing": {"type": "object"}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, INT]}, "a/b": {"items": {}}}
TYPED = [
    ({"anyOf": [INT, NULL]}, "3", 3),
    ({"anyOf": [INT, NULL]}, "null", None),
    ({"anyOf": [INT, NULL]}, "None", None),
    ({"oneOf": [TEXT, THING]}, '{"a": [1, null]}', {"a": [1, None]}),
    ({"oneOf": [TEXT, THING]}, "plain", "plain"),
    ({"oneOf": [TEXT, INT]}, "007", "007"),
    ({"type": ["string", "null"]}, "null", None),
    ({"type": ["boolean", "array"]}, "True", True),
    ({"enum": ["red", 3, None]}, "3", 3),
    ({"enum": ["red", 3, None]}, "red", "red"),
    ({"enum": ["red", 3, None]}, '"red"', "red"),
    ({"enum": ["1", "2"]}, "1", "1"),
    ({"const": 7}, "7", 7),
    ({"const": "7"}, "7", "7"),
    (THING, "{'a': True, 'b': None, 'c': {'d': (1, 2)}}", None),
    (THING, "{'a': True, 'b': None, 'c': {'d': [1, 2.5]}}", {"a": True, "b": None, "c": {"d": [1, 2.5]}}),
    (THING, "{'a': 1, 'a': 2}", None),
    (THING, '{"a": 1, "a": 2}', None),
    (THING, "{1: 2}", None),
    (THING, "__import__('os')", None),
    ({"$ref": "#/$defs/loop"}, "4", 4),
    ({"$ref": "#/$defs/a~1b"}, "[1]", [1]),
    ({"$ref": "https://example.org/x"}, "4", None),
    ({"allOf": [{"type": ["integer", "string"]}, {"type": ["integer", "null"]}]}, "5", 5),
    ({"type": "integer", "nullable": True}, "null", None),
    (INT, "3.0", None),
    (INT, "True", None),
    ({"type": "number"}, "1e3", 1000.0),
    ({"properties": {"x": INT}}, '{"x": 1}', {"x": 1}),
    (TEXT, "True", "True"),
    (TEXT, '{"a": 1}', '{"a": 1}'),
    ({"description": "anything"}, "3", "3"),
]


@pytest.mark.parametrize(("schema", "text", "value"), TYPED)
def test_a_value_is_typed_by_the_whole_schema_or_stays_text_and_is_told(schema, text, value):
    fits = value is not None or text in ("null", "None")
    for where in ({"properties": {"x": schema}}, {"anyOf": [{"$ref": "#/$defs/own"}]}):
        tool = ToolSchema("search", "-", {**where, "$defs": {**DEFS, "own": {"properties": {"x": schema}}}})
        whole = f"<tool_call>\n{function(parameter('x', text))}\n</tool_call>"
        for call in (whole, function(f"<parameter=x>{text}</parameter>")):
            reply = read_reply(call, read_qwen_coder, [tool])
            [read] = reply.calls
            expected = value if fits else text
            assert (read.arguments["x"], type(read.arguments["x"])) == (expected, type(expected))
            assert ("untyped_argument" in reply.notes) != fits
            assert (check_call(read, [tool]) is None) == fits


@pytest.mark.parametrize("name", BY_NAME)
def test_without_tools_nothing_is_a_call(name):
    text = '<tool_call>{"name": "search", "arguments": {}}</tool_call>'
    assert read_reply(text, BY_NAME[name]) == Reply(text)


@pytest.mark.parametrize("properties", [None, [], {"query": True, "count": None}])
def test_a_schema_may_say_nothing_of_an_argument(properties):
    tool = ToolSchema("search", "-", {"properties": properties})
    text = "<tool_call><function=search><parameter=query>3</parameter></function></tool_call>"
    assert read_reply(text, read_qwen_coder, [tool]).calls == (ToolCall("search", {"query": "3"}),)


def test_thoughts_end_with_the_first_tag_and_inside_an_argument_nothing_is_a_tag():
    call = '<tool_call>{"name": "search", "arguments": {"query": "</think>"}}</tool_call>'
    reply = read_reply(f"<think>a</think>{call}", read_hermes, [TOOL])
    assert (reply.reasoning, reply.calls) == ("a", (ToolCall("search", {"query": "</think>"}),))
    assert read_reply(call, read_hermes, [TOOL]).calls == reply.calls
    cut = read_reply("<think>\nI wonder", read_hermes, [TOOL])
    assert (cut.text, cut.reasoning, cut.error and cut.error.kind) == ("", "I wonder", "unclosed_thought")
