"""A request that is parsed from its bytes says the same as the values in it, also when its items are remembered."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from core.gateway import openai_chat
from core.gateway.bodies import parse_body
from core.gateway.gateway import Codec
from core.gateway.messages import GatewayError, WireCall, WireMessage

from .agents import WRITERS

BIG = 123456789012345678901234567890
TEXTS = ("plain", "half of a character: \ud83d", '\u6f22\u5b57 \\ " \n', "x" * 10_000, "")


def write_bodies(text: str) -> list[tuple[Codec, dict[str, Any]]]:
    call = WireCall("c", "f", json.dumps({"n": BIG, "text": text}))
    answer = WireMessage("assistant", text, calls=(call,))
    messages = [WireMessage("user", text), answer, WireMessage("tool", text, call_id="c")]
    return [(codec, {"model": "policy", **write(messages, random.Random(0))}) for codec, write in WRITERS.values()]


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
