"""A request that is parsed from its bytes says the same as the values in it, also when its items are remembered."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from core.gateway import anthropic_messages, openai_chat, openai_responses
from core.gateway.bodies import MAX_TOOL_BYTES, parse_body
from core.gateway.gateway import Codec
from core.gateway.messages import GatewayError

BIG = 123456789012345678901234567890
TEXTS = ("plain", "half of a character: \ud83d", '\u6f22\u5b57 \\ " \n', "x" * 10_000, "")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "default": BIG, "maximum": 1e300}}}


def write_bodies(text: str) -> list[tuple[Codec, dict[str, Any]]]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"n": BIG})}}
    chat = {
        "model": "policy",
        "tools": [{"type": "function", "function": {"name": "f", "description": text, "parameters": SCHEMA}}],
        "messages": [
            {"role": "user", "content": text},
            {"role": "assistant", "content": text, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": text}]},
        ],
    }
    responses = {
        "model": "policy",
        "tools": [{"type": "function", "name": "f", "description": "d" * MAX_TOOL_BYTES, "parameters": SCHEMA}],
        "input": [
            {"role": "user", "content": text},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": json.dumps({"n": BIG})},
            {"type": "function_call_output", "call_id": "c", "output": text},
        ],
    }
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {"n": BIG, "text": text}}
    anthropic = {
        "model": "policy",
        "max_tokens": 5,
        "system": [{"type": "text", "text": text}],
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "messages": [
            {"role": "user", "content": text},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": text}]},
        ],
    }
    return [
        (openai_chat, chat),
        (openai_responses, responses),
        (openai_responses, {"model": "policy", "input": text}),
        (anthropic_messages, anthropic),
    ]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_bytes_and_values_are_the_same_request(text: str, ascii_only: bool) -> None:
    for codec, body in write_bodies(text):
        expected = codec.read_request(body)
        written = json.dumps(body, ensure_ascii=ascii_only).encode(errors="replace")
        if "\ud83d" in text and not ascii_only:
            expected = codec.read_request(json.loads(written))
        for _ in range(2):
            assert codec.read_request(parse_body(written)) == expected


def test_long_lists_stay_as_they_were_written_until_they_are_read() -> None:
    body = parse_body(b'{"messages": [{"role": "user"}, 7], "stop": ["a"], "tools": "none", "x": 1e400}')
    assert body == {"messages": [{"role": "user"}, 7], "stop": ["a"], "tools": "none", "x": float("inf")}
    body = parse_body(b'{"messages": [{"role": "user"}, 7], "stop": ["a"], "tools": "none"}')
    assert [bytes(item) for item in body["messages"]] == [b'{"role": "user"}', b"7"]
    assert all(isinstance(item, msgspec.Raw) for item in body["messages"])
    assert (body["stop"], body["tools"]) == (["a"], "none")


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ('{"role": "ghost"}', "messages.1.role: 'ghost' is none of"),
        ("7", "messages.1: must be a JSON object"),
        ('{"role": "user", "content": "\\u12"}', "is no JSON"),
        ('{"role": "user", "content": }', "body: is no JSON"),
    ],
)
def test_an_item_that_is_refused_is_named_by_its_path_each_time(item: str, message: str) -> None:
    good = '{"role": "user", "content": "good"}'
    for _ in range(2):
        with pytest.raises(GatewayError, match=message) as refusal:
            openai_chat.read_request(parse_body(f'{{"model": "policy", "messages": [{good}, {item}]}}'.encode()))
        assert refusal.value.status == 400


@pytest.mark.parametrize("written", [b"", b"{", b'"\xff"', b"[" * 100_000, b"nan", b"1" * 5000])
def test_what_is_no_json_is_refused(written: bytes) -> None:
    with pytest.raises(GatewayError, match="body: is no JSON"):
        parse_body(written)
