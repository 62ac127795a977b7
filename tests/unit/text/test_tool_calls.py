"""Every malformed call has a named fault, and no text raises an exception."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.text.tool_calls import CallError, Fault, ToolCall, ToolSchema, check_call, parse_calls, strip_thinking

SCHEMAS = (
    ToolSchema(
        "search",
        "Search.",
        {
            "type": "object",
            "properties": {"model": {"type": "string", "enum": ["search-1", "search-2"]}},
            "required": ["model"],
        },
    ),
    ToolSchema(
        "add",
        "Add.",
        {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "on": {"type": "boolean"}, "x": {"type": ["number", "null"]}},
            "required": ["n"],
        },
    ),
)
GOOD = '{"name": "search", "arguments": {"model": "search-2"}}'


def call(body: str) -> str:
    return f"<think>which?</think>\n<tool_call>\n{body}\n</tool_call>"


def parse_one(text: str) -> ToolCall | CallError:
    calls = parse_calls(text)
    return calls if isinstance(calls, CallError) else check_call(calls[0], SCHEMAS) or calls[0]


def test_a_good_call_is_read_with_text_around_it() -> None:
    expected = ToolCall("search", {"model": "search-2"})
    assert parse_one(call(GOOD)) == expected
    assert parse_one(f"I will look.\n<tool_call>{GOOD}</tool_call>\nDone.") == expected
    assert parse_calls(f"<tool_call>{GOOD}</tool_call>" * 2, several=True) == [expected, expected]
    assert parse_one(call(expected.render())) == expected


MALFORMED = {
    "no_call": ["", "search", "<tool>search</tool>", "<think>a</think> I know it."],
    "unclosed_thought": ["<think>" + call(GOOD).removeprefix("<think>which?</think>"), "<think>a</think><think>still"],
    "unclosed_call": [f"<tool_call>{GOOD}", f"<tool_call>{GOOD}<tool_call>{GOOD}</tool_call>"],
    "stray_tag": [f"{GOOD}</tool_call>", call(GOOD) + "</tool_call>"],
    "not_json": [call(""), call("search(model=1)"), call(GOOD[:-1]), call(GOOD + "}"), call("[" * 100_000),
                 call(GOOD.replace('"', "'")), call('{"name": "add", "arguments": {"n": NaN}}'),
                 call('{"name": "add", "arguments": {"n": ' + "9" * 5000 + "}}"),
                 call('{"name": "add", "arguments": {"n": 1, "x": -1e999}}'),
                 call('{"name": "\\ud800", "arguments": {}}')],
    "not_object": [call("[]"), call('"search"'), call("null"), call("3")],
    "duplicate_key": [call('{"name": "add", "name": "search", "arguments": {}}'),
                      call('{"name": "add", "arguments": {"n": 1, "n": 2}}')],
    "missing_key": [call('{"name": "search"}'), call('{"arguments": {}}'), call("{}")],
    "extra_key": [call('{"name": "search", "arguments": {}, "id": 1}')],
    "name_not_text": [call('{"name": 1, "arguments": {}}'), call('{"name": null, "arguments": {}}')],
    "arguments_not_object": [call(f'{{"name": "search", "arguments": {value}}}') for value in ("[]", "null", "1")],
    "arguments_as_text": [call('{"name": "search", "arguments": "{\\"model\\": \\"search-1\\"}"}')],
    "several_calls": [call(GOOD) + call(GOOD).removeprefix("<think>which?</think>")],
    "unknown_tool": [call('{"name": "Search", "arguments": {}}'), call('{"name": "", "arguments": {}}')],
    "missing_argument": [call('{"name": "search", "arguments": {}}')],
    "unknown_argument": [call('{"name": "search", "arguments": {"model": "search-1", "query": "x"}}')],
    "argument_type": [call('{"name": "search", "arguments": {"model": 1}}'),
                      call('{"name": "add", "arguments": {"n": true}}'),
                      call('{"name": "add", "arguments": {"n": 1, "x": "1"}}')],
    "unknown_choice": [call('{"name": "search", "arguments": {"model": "gpt-5"}}')],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in MALFORMED.items() for text in texts])
def test_each_malformed_call_has_its_fault(kind: str, text: str) -> None:
    error = parse_one(text)
    assert isinstance(error, CallError)
    assert error.kind == kind
    assert 0 < len(error.message) < 300


@pytest.mark.parametrize(
    ("parameters", "takes_any"),
    [
        ({"type": "object"}, True),  # as many MCP servers describe a tool
        ({}, True),
        ({"type": "object", "properties": {}, "additionalProperties": {}}, True),
        ({"type": "object", "properties": {"n": {}}, "additionalProperties": True}, True),
        ({"type": "object", "properties": {}}, False),
        ({"type": "object", "additionalProperties": False}, False),
        ({"type": "object", "anyOf": [{"properties": {"n": {}}}, {"properties": {"m": {}}}]}, False),
    ],
)
def test_a_schema_without_names_of_arguments_takes_any(parameters: dict[str, Any], takes_any: bool) -> None:
    found = check_call(ToolCall("free", {"path": "a", "depth": 3}), [ToolSchema("free", "", parameters)])
    assert (found is None) == takes_any, found


def test_every_fault_has_a_case() -> None:
    assert MALFORMED.keys() == set(get_args(Fault))


def test_thoughts_are_not_searched_for_calls() -> None:
    assert strip_thinking("<think>a</think>b") == "b"
    thought = f"<think>perhaps <tool_call>{GOOD}</tool_call></think>no"
    assert getattr(parse_one(thought), "kind", None) == "no_call"


@given(st.text())
def test_no_text_raises(text: str) -> None:
    for shape in (text, call(text), f"<tool_call>{text}", call(json.dumps({"name": text, "arguments": {text: text}}))):
        assert isinstance(parse_one(shape), CallError | ToolCall)


@pytest.mark.parametrize("unit", ["<tool_call>", "</tool_call>", "<think>", "</think>", '{"a":', "[", '"', "\\"])
def test_time_is_linear(unit: str) -> None:
    """A megabyte of one unit would take hours if time were quadratic."""
    assert isinstance(parse_one(unit * (1_000_000 // len(unit))), CallError)
