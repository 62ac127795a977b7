"""Whether a thought is open is read from the end of the very prompt, and what was opened stays in the history."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tokenizers import AddedToken

from core.gateway.history import NOWHERE
from core.gateway.messages import WireCall, WireMessage
from core.gateway.transcriber import Transcriber
from core.policy.scripted import ScriptedPolicy
from core.rollout.calls import TemplateCalls
from core.rollout.rows import make_rows
from core.text.conversation import Renderer
from core.text.tool_calls import make_schema
from core.types import Completion

from .model import RandomModel, check, open_session
from .templates import QWEN3, QWEN3_CODER, make_tokenizer
from .test_session import ask

EMPTY = "<think>\n\n</think>\n\n"
ENDS = {"plain": "", "opens": "<think>\n", "deep": "<think>"}
ENDS |= {"off": EMPTY, "off-short": "<think></think>", "only-end": "</think>"}
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


async def test_results_that_come_out_of_order_stand_behind_their_calls_where_no_id_is_shown():
    two = f"{CALL.replace('hay', 'Oslo')}\n{CALL.replace('hay', 'Rome')}"
    for kind, swapped in (("qwen3", True), ("kimi", False)):
        model = make_model("", two) if swapped else RandomModel(make_tokenizer(kind), "hermes")
        transcriber = Transcriber(model.tokenizer)
        calls = tuple(WireCall(f"call_{n}", "search", "{}") for n in (1, 2, 3))
        messages = (
            WireMessage("user", "hello"),
            WireMessage("assistant", "", calls=calls),
            WireMessage("tool", "?", call_id="nobody's"),
            WireMessage("tool", "30", call_id="call_2"),
            WireMessage("tool", "-5", call_id="call_1"),
            WireMessage("tool", "9", call_id="call_3"),
        )
        came = replace(NOWHERE, messages=messages, entries=messages)
        ordered = transcriber.order_results(came)
        shown = ["-5", "30", "9", "?"] if swapped else ["?", "30", "-5", "9"]
        assert [message.text for message in ordered.messages[2:]] == shown
        assert transcriber.order_results(ordered) is ordered


def test_a_second_end_token_of_a_model_is_none_of_its_text():
    """Llama 3.1 ends a call with <|eom_id|>, which is special and has no name."""
    tokenizer = copy.deepcopy(make_tokenizer("llama3"))
    tokenizer.add_tokens([AddedToken("<|eom_id|>", special=True)])
    end = tokenizer.convert_tokens_to_ids("<|eom_id|>")
    assert end not in tokenizer.all_special_ids
    schema = make_schema("search", "finds", {"query": "string"})
    ids = (*tokenizer.encode('{"name": "search", "parameters": {"query": "x"}}', add_special_tokens=False), end)
    completion = Completion(ids, (0.0,) * len(ids), "stop")
    reply, _, _ = Transcriber(tokenizer).read((1,), completion, [schema], ())

    class Calls(TemplateCalls):
        key, schemas = "search_r1.format", [schema]

    for read in (reply, Calls(Renderer(tokenizer)).read_calls((), ids)):
        assert ([call.name for call in read.calls], read.error, read.text) == (["search"], None, "")


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
    [({}, "unended_argument"), *((cut, "malformed_unclosed_call") for cut in ({"max_tokens": 30}, {"stop": ("ay",)}))],
)
async def test_an_argument_that_was_cut_is_no_call(cut: dict[str, Any], counted: str) -> None:
    session = open_session(make_model("", XML + " straw" * (20 if cut else 0), QWEN3_CODER))
    answer = await ask(session, [WireMessage("user", "hello")], **cut)
    assert len(answer.message.calls) == (0 if cut else 1)
    assert session.counters == {counted: 1}


GLM_CALL = "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>hay</arg_value>\n</tool_call>"
KIMI_CALL = '<|tool_call_begin|>functions.search:{}<|tool_call_argument_begin|>{{"query": "hay"}}<|tool_call_end|>'
KIMI_CALLS = f"<|tool_calls_section_begin|>{KIMI_CALL.format(0)}{KIMI_CALL.format(1)}<|tool_calls_section_end|>"
REPLIES = {
    "glm": (
        f"\n<think>hm</think>\nLook.\n{GLM_CALL}\n{GLM_CALL}<|observation|>",
        "\n<think>so</think>\nDone.<|user|>",
        "\n<think>yes</think>\nBye.<|user|>",
    ),
    "kimi": (
        f"<think>hm</think>Look.{KIMI_CALLS}<|im_end|>",
        "<think>so</think>Done.<|im_end|>",
        "<think>yes</think>Bye.<|im_end|>",
    ),
}


@pytest.mark.parametrize("history", ["sampled", "template"])
@pytest.mark.parametrize("name", REPLIES)
async def test_prompts_of_glm_and_kimi_hold_sampled_ids_and_the_templates_text(name: str, history: str) -> None:
    tokenizer = make_tokenizer(name)
    model = RandomModel(tokenizer, name)
    replies = iter(REPLIES[name])
    encode = partial(tokenizer.encode, add_special_tokens=False)
    model.policy = ScriptedPolicy(lambda prompt, _: encode(next(replies)), logprob=-0.5)
    session = open_session(model, history=history)
    messages: list[Any] = [WireMessage("user", "hello")]
    answers = []
    for _ in range(3):
        answers.append(await ask(session, messages))
        message = answers[-1].message
        results = [WireMessage("tool", f"found {i}", call_id=call.call_id) for i, call in enumerate(message.calls)]
        messages += [message, *(results or [WireMessage("user", "and?")])]
    first, second, third = answers
    assert [(a.message.text, a.message.reasoning, len(a.message.calls)) for a in answers] == [
        ("Look.", "hm", 2), ("Done.", "so", 0), ("Bye.", "yes", 0)
    ]  # fmt: skip
    whole = first.prompt_ids + first.completion.token_ids
    assert second.prompt_ids[: len(whole)] == whole
    shown_results = {
        "glm": "<|observation|>\nfound 0<|observation|>\nfound 1<|assistant|>",
        "kimi": "<|im_end|><|im_start|>tool<|middle|>## Return of functions.search:0\nfound 0<|im_end|>"
        "<|im_start|>tool<|middle|>## Return of functions.search:1\nfound 1<|im_end|><|im_start|>assistant<|middle|>",
    }
    assert tokenizer.decode(second.prompt_ids).endswith(shown_results[name])
    text = tokenizer.decode(third.prompt_ids)
    assert (text.count("<think></think>"), text.count("hm")) == ((0, 1) if history == "sampled" else (2, 0))
    assert check(model, session.finish().turns) == (1 if history == "sampled" else 2)
