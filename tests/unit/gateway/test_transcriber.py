"""Whether a thought is open is read from the end of the very prompt, and what was opened stays in the history."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from core.gateway.messages import WireMessage
from core.policy.scripted import ScriptedPolicy
from core.rollout.rows import make_rows

from .model import RandomModel, open_session
from .templates import QWEN3, QWEN3_CODER, make_tokenizer
from .test_session import ask

EMPTY = "<think>\n\n</think>\n\n"
ENDS = {
    "plain": "",
    "opens": "<think>\n",
    "deep": "<think>",
    "off": EMPTY,
    "off-short": "<think></think>",
    "only-end": "</think>",
}
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "hay"}}\n</tool_call>'


def make_model(end: str, text: str, template: str = QWEN3) -> RandomModel:
    tokenizer = copy.deepcopy(make_tokenizer("qwen3"))
    header = "{% if add_generation_prompt %}<|im_start|>assistant\n"
    assert header in template
    tokenizer.chat_template = template.replace(header, header + end)
    model = RandomModel(tokenizer, "hermes")
    ids = [*model.encode(text), tokenizer.eos_token_id]
    model.policy = ScriptedPolicy(lambda prompt, _: ids, logprob=-0.5, decode=tokenizer.decode)
    return model


READ: list[tuple[str, str, str, str, list[str], dict[str, int]]] = [
    ("off", "Hello.", "Hello.", "", [], {}),
    ("off", CALL, "", "", ["hay"], {}),
    ("off", "Thoughts end with </think>.", "Thoughts end with </think>.", "", [], {}),
    ("off", "<think>\nyet\n</think>\n\nHello.", "Hello.", "yet", [], {}),
    ("off-short", "Hello.", "Hello.", "", [], {}),
    ("only-end", "Hello.", "Hello.", "", [], {}),
    ("opens", "hm\n</think>\n\nHello.", "Hello.", "hm", [], {}),
    ("opens", "<think>\nhm\n</think>\n\nHello.", "Hello.", "hm", [], {}),
    ("opens", f"{CALL}\n</think>\n\nHello.", "Hello.", CALL, [], {}),
    ("opens", f"for ever {CALL}", "", f"for ever {CALL}", [], {"malformed_unclosed_thought": 1}),
    ("deep", "hm</think>Hello.", "Hello.", "hm", [], {}),
    ("plain", "Thoughts end with </think>.", "Thoughts end with </think>.", "", [], {}),
    ("plain", CALL.replace("hay", "a </think> b"), "", "", ["a </think> b"], {}),
    ("plain", CALL.replace("hay", "<think></tool_call><tool_call>"), "", "", ["<think></tool_call><tool_call>"], {}),
    ("plain", "<think>\nhm\n</think>\n\nSo: <think>x</think>", "So: <think>x</think>", "hm", [], {}),
    ("plain", CALL.removesuffix("</tool_call>"), "", "", ["hay"], {"unended_call": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("end", "reply", "text", "reasoning", "queries", "counted"), READ)
async def test_a_reply_is_read_behind_what_its_prompt_has_opened(end, reply, text, reasoning, queries, counted):
    session = open_session(make_model(ENDS[end], reply))
    answer = await ask(session, [WireMessage("user", "hello <think>")])
    read = [json.loads(call.arguments)["query"] for call in answer.message.calls]
    assert (answer.message.text, answer.message.reasoning or "", read) == (text, reasoning, queries)
    assert session.counters == counted
    if reasoning and text:
        spoken = make_tokenizer("qwen3").decode(answer.completion.token_ids[answer.reasoning_tokens : -1])
        assert spoken == text


async def test_a_template_may_open_thoughts_only_without_tools():
    end = "{% if tools %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
    session = open_session(make_model(end, "Hello."))
    with_tools = await ask(session, [WireMessage("user", "hello")])
    without = await ask(session, [WireMessage("user", "hello")], tools=())
    assert (with_tools.message.text, without.message.text, without.message.reasoning) == ("Hello.", "", "Hello.")


@pytest.mark.parametrize("end", ["plain", "opens", "off"])
@pytest.mark.parametrize("reply", ["so\n</think>\n\nHello </think> there.", "Hello."])
async def test_what_a_prompt_opened_stays_before_its_answer(end: str, reply: str) -> None:
    model = make_model(ENDS[end], reply)
    session = open_session(model)
    messages = [WireMessage("user", "hello"), WireMessage("user", "and then?")]
    first = await ask(session, messages)
    messages += [first.message, WireMessage("user", "go on")]
    second = await ask(session, messages)
    whole = first.prompt_ids + first.completion.token_ids
    assert second.prompt_ids[: len(whole)] == whole
    trimmed = await ask(session, messages[1:])  # no stored prompt leads there: all is rendered anew
    assert f"assistant\n{ENDS[end]}{reply}<|im_end|>" in model.tokenizer.decode(trimmed.prompt_ids)
    assert len(make_rows(session.finish().turns, "segment")) == 2


XML = "<tool_call>\n<function=search>\n<parameter=query>\nhay"


@pytest.mark.parametrize(
    ("cut", "counted"),
    [
        ({}, {"unended_argument": 1}),
        ({"max_tokens": 30}, {"malformed_unclosed_call": 1}),
        ({"stop": ("ay",)}, {"malformed_unclosed_call": 1}),
    ],
)
async def test_an_argument_that_was_cut_is_no_call(cut: dict[str, Any], counted: dict[str, int]) -> None:
    session = open_session(make_model("", XML + " straw" * (20 if cut else 0), QWEN3_CODER))
    answer = await ask(session, [WireMessage("user", "hello")], **cut)
    assert len(answer.message.calls) == (0 if cut else 1)
    assert session.counters == counted
