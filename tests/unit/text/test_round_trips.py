"""Generated replies, as the format's own template writes them, are read as they were meant, or refused by name."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import pytest
from jinja2 import Environment

from core.text.call_formats import CallFormat, Reply, read_glm, read_kimi, read_reply
from core.text.qwen_coder import read_qwen_coder
from core.text.tool_calls import ToolCall, ToolSchema
from tests.unit.gateway.templates import FORMATS, TEMPLATES
from tests.unit.text.test_call_formats import BY_NAME

OPENINGS = ("", "<think>\n", "<think>\n\n</think>\n\n")
TAGS = (
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<function=write>", "<function=other>", "</function>",
    "<parameter=text>", "<parameter=count>", "<parameter=other>", "</parameter>", "<|python_tag|>", "[TOOL_CALLS]",
    "<|im_end|>", "<code>", "</code>", "```", "<answer>", "<search>", "</search>", '{"name": "write"}', "{", "}", '"',
    "<arg_value>", "</arg_value>", "<|tool_call_end|>",
    "\\", ";", "True", "None", "null", "12", "a b", "é", "\U0001f40e", "\n", "\n\n", " ", "\r\n", "]]>", "&amp;",
)  # fmt: skip


def draw_text(rng: Random) -> str:
    return "".join(rng.choice(TAGS) + rng.choice(("", " ", "\n")) for _ in range(rng.randint(0, 8)))


def draw_json(rng: Random, depth: int = 2) -> Any:
    plain = (lambda: rng.randint(-99, 99), lambda: rng.random(), lambda: rng.choice((True, False, None)))
    if not depth:
        return rng.choice((*plain, lambda: draw_text(rng)))()
    if rng.random() < 0.5:
        return [draw_json(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {draw_text(rng): draw_json(rng, depth - 1) for _ in range(rng.randint(0, 3))}


def draw_object(rng: Random) -> Any:
    return {"inner": draw_json(rng), "text": draw_text(rng)}


def draw_integer(rng: Random) -> int:
    return rng.randint(-99, 99)


def draw_word(rng: Random) -> str:
    return rng.choice(("hay", "two words", "</parameter>", "<tool_call>", "it is </think>"))


INTEGER, NULL, OBJECT = {"type": "integer"}, {"type": "null"}, {"type": "object", "properties": {"inner": {}}}
ARGUMENTS: Mapping[str, tuple[Any, Callable[[Random], Any]]] = {
    "text": ({"type": "string"}, draw_text),
    "count": (INTEGER, draw_integer),
    "either": ({"anyOf": [{"type": "string"}, INTEGER]}, lambda rng: rng.choice((draw_word, draw_integer))(rng)),
    "maybe": ({"oneOf": [{"$ref": "#/$defs/thing"}, NULL]}, lambda rng: rng.choice((None, draw_object(rng)))),
    "list": ({"type": ["array", "null"], "items": {}}, lambda rng: rng.choice((None, [draw_json(rng)]))),
    "choice": ({"enum": ["red", 3, None]}, lambda rng: rng.choice(("red", 3, None))),
    "fixed": ({"const": 7}, lambda rng: 7),
    "both": ({"allOf": [{"type": "number"}, {"description": "-"}]}, lambda rng: rng.choice((1.5, 2))),
    "nested": ({"anyOf": [{"anyOf": [{"type": "boolean"}, OBJECT]}, NULL]}, lambda rng: rng.choice((True, None, {}))),
}
WRITE = ToolSchema(
    "write",
    "-",
    {
        "type": "object",
        "properties": {name: schema for name, (schema, _) in ARGUMENTS.items()},
        "$defs": {"thing": {"allOf": [OBJECT, {"$ref": "#/$defs/same"}]}, "same": {"type": "object"}},
    },
)


@dataclass
class Meant:
    """Holds what a reply means, before it is written."""

    thoughts: str
    text: str
    calls: list[ToolCall]


def draw(rng: Random, most_calls: int) -> Meant:
    def draw_call() -> ToolCall:
        names = rng.sample(sorted(ARGUMENTS), rng.randint(0, len(ARGUMENTS)))
        return ToolCall("write", {name: ARGUMENTS[name][1](rng) for name in names})

    text = rng.choice(("", "I look.", "Behind </think> comes <answer>.", "Hello ```"))
    calls = [draw_call() for _ in range(rng.randint(0, most_calls))]
    return Meant(draw_text(rng).replace("</think>", "").replace("<think>", ""), text, calls)


@cache
def compile_template(name: str) -> Any:
    environment = Environment()
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)  # as transformers writes it
    return environment.from_string(TEMPLATES[name])


def write(template: str, meant: Meant) -> str:
    """Return the reply as the template shows it."""
    calls = [{"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in meant.calls]
    message = {"role": "assistant", "content": meant.text, "tool_calls": calls}
    shown = compile_template(template).render(messages=[message])
    return re.sub(r"<\|im_end\|>\n?\Z", "", re.sub(r"\A<\|im_start\|>assistant(<\|h\|>\n)?\n", "", shown))


def forges(calls: Sequence[ToolCall]) -> bool:
    """Say whether a text holds the very lines with which the template ends an argument: nothing tells them apart."""
    seam = re.compile(r"\n</parameter>\n(<parameter=|</function>)")
    return any(seam.search(f"\n{value}\n") for call in calls for value in call.arguments.values())


@pytest.mark.parametrize("template", ["qwen3", "qwen3_coder", "llama3"])
def test_what_was_meant_comes_back_or_an_error_with_a_name(template: str, fuzz_cases: int) -> None:
    rng, counts = Random(template), Counter[str]()
    for _ in range(fuzz_cases):
        opening = rng.choice(OPENINGS)
        meant = draw(rng, 1 if template == "llama3" else 3)
        if template == "llama3" and meant.calls:
            meant.text = ""
        thinks = opening == "<think>\n" or rng.random() < 0.3
        body = write(template, meant)
        before = ("" if opening == "<think>\n" else "<think>\n") + f"{meant.thoughts}\n</think>\n\n" if thinks else ""
        reply = read_reply(opening + before + body, BY_NAME[FORMATS[template]], [WRITE])
        forged = template == "qwen3_coder" and forges(meant.calls)
        if reply.error is not None:
            assert template == "qwen3_coder", (meant, reply)
            counts[reply.error.kind] += 1
        elif not forged:
            assert list(reply.calls) == meant.calls, body
            read, wanted = ([dict(call.arguments) for call in each.calls] for each in (reply, meant))
            assert json.dumps(read) == json.dumps(wanted), "True is not 1"
            assert reply.text == meant.text.strip()
            counts["read"] += 1
        assert reply.reasoning == (meant.thoughts.strip() if thinks else "")
        assert forged or not reply.notes
    assert counts["read"] > 0.97 * fuzz_cases, counts


ENDS = ("\n</parameter>\n", "\n</function>\n</tool_call>")
PIECES = (*TAGS, *ENDS, "<function=write>\n<parameter=text>\n", "<parameter=")


@pytest.mark.parametrize("name", BY_NAME)
def test_no_reply_raises_and_what_is_no_call_stays_text(name: str, fuzz_cases: int) -> None:
    rng = Random(name)
    for _ in range(fuzz_cases):
        text = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 12)))
        reply = read_reply(text, BY_NAME[name], [WRITE])
        if not reply.calls and reply.error is None:
            assert "".join(reply.text.split()) in "".join(text.split())
            assert len(reply.text) + len(reply.reasoning) >= len(text.replace("<think>", "").strip()) - 40


@pytest.mark.parametrize(
    ("read", "head", "unit"),
    [
        (read_glm, "<tool_call>write<arg_key>text</arg_key><arg_value>", unit)
        for unit in (
            "<arg_value>",
            "</arg_value>",
            "</arg_value></tool_call>",
            "</arg_value><arg_key>",
            " ",
            "<tool_call>a",
        )
    ]
    + [(read_kimi, "<|tool_calls_section_begin|>", unit) for unit in (" ", "<|tool_call_begin|>functions.", "a.")],
)
def test_time_is_linear_in_a_reply_of_glm_and_kimi(read: CallFormat, head: str, unit: str) -> None:
    text = head + unit * (400_000 // len(unit))
    before = time.process_time()
    assert read_reply(text, read, [WRITE]) != Reply(text)
    assert time.process_time() - before < 5.0


@pytest.mark.parametrize(
    "unit", ["<parameter=a>\n", "\n</parameter>\n", "</function>\n", "<function=write>\n</function>"]
)
def test_time_is_linear_in_a_reply_of_qwen3_coder(unit: str) -> None:
    """These take a second; they would take many minutes if time were quadratic."""
    text = "<tool_call>\n<function=write>\n<parameter=text>\n" + unit * (200_000 // len(unit))
    reply = read_reply(text, read_qwen_coder, [WRITE])
    assert reply.error is not None or reply.notes
