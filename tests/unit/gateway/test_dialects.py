"""What real clients do and expect, in each protocol: where they compact, where they stop, and what they send back."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from core.gateway import gateway as server
from core.gateway import openai_chat
from core.gateway.bodies import parse_body
from core.gateway.gateway import Codec
from core.gateway.messages import GatewayError, WireCall, WireMessage
from core.policy.base import PolicyError
from core.policy.scripted import ScriptedPolicy

from .agents import WRITERS
from .model import RandomModel
from .templates import FORMATS, QWEN3, make_tokenizer
from .test_gateway import PATHS, finish, serve

# As Qwen3.5's: it raises at a system message that is not the first message.
STRICT = QWEN3.replace(
    "{% for m in messages %}{% if m.role == 'tool' %}",
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% if m.role == 'tool' %}",
)
TWO_CALLS = "".join(
    f'\n<tool_call>\n{{"name": "search", "arguments": {{"query": "{query}", "count": 1.0}}}}\n</tool_call>'
    for query in ("a", "b")
)


def read_chat(reply: Any) -> tuple[str, list[tuple[str, str]]]:
    message = reply["choices"][0]["message"]
    calls = [(call["id"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return message["content"] or "", calls


def read_responses(reply: Any) -> tuple[str, list[tuple[str, str]]]:
    items = reply["output"]
    text = "".join(item["content"][0]["text"] for item in items if item["type"] == "message")
    return text, [(item["call_id"], item["arguments"]) for item in items if item["type"] == "function_call"]


def read_anthropic(reply: Any) -> tuple[str, list[tuple[str, str]]]:
    text = "".join(block["text"] for block in reply["content"] if block["type"] == "text")
    blocks = [block for block in reply["content"] if block["type"] == "tool_use"]
    return text, [(block["id"], json.dumps(block["input"])) for block in blocks]


Messages = Sequence[WireMessage]
READERS = {"chat": read_chat, "responses": read_responses, "anthropic": read_anthropic}
HELLO = [WireMessage("user", "hello")]


def write(name: str, messages: Messages) -> dict[str, Any]:
    """Return the fields of a request with these messages and tools, as a client of a protocol writes them."""
    return WRITERS[name][1](messages, random.Random(0))


def echo(name: str, reply: Any, rewrite: Callable[[str], str] = str) -> dict[str, Any]:
    """Return the fields of a request that sends an answer back, its arguments rewritten, with tools' results."""
    text, calls = READERS[name](reply)
    written = tuple(WireCall(call_id, "search", rewrite(arguments)) for call_id, arguments in calls)
    results = [WireMessage("tool", "ok", call_id=call_id) for call_id, _ in calls]
    return write(name, [*HELLO, WireMessage("assistant", text, calls=written), *results])


def make_model(text: str | None = None, template: str | None = None) -> RandomModel:
    """Return a model that always says `text`, or else talks at random without calls."""
    tokenizer = make_tokenizer("qwen3")
    if template is not None:
        tokenizer = copy.copy(tokenizer)
        tokenizer.chat_template = template
    model = RandomModel(tokenizer, FORMATS["qwen3"], calling=0.0, thinking=0.0, seed=1)
    if text is not None:
        model.policy = ScriptedPolicy(lambda prompt, sampling: [*model.encode(text), tokenizer.eos_token_id])
    return model


def show_prompt(model: RandomModel) -> str:
    """Return the text of the last prompt."""
    text: str = model.tokenizer.decode(model.policy.calls[-1].prompt_ids)
    return text


Dialect = tuple[str, Callable[[Messages], dict[str, Any]], Callable[[Any], tuple[str, list[tuple[str, str]]]]]


@pytest.fixture(params=PATHS)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    """Return the path of a protocol, and functions that write its requests and read its replies."""
    return PATHS[request.param], partial(write, request.param), READERS[request.param]


async def test_system_messages_that_a_template_refuses_are_one_at_the_beginning(dialect: Dialect) -> None:
    path, write, read = dialect
    model = make_model(template=STRICT)
    async with serve(model) as (_, client):
        messages = [WireMessage("system", "SYS-A"), WireMessage("system", "SYS-B"), *HELLO]
        for late in ("", "SYS-C", ""):
            messages += [WireMessage("system", late)] if late else []
            reply = await client.post(path, {"model": "policy", **write(messages)})
            text = show_prompt(model)
            merged = "SYS-A\n\nSYS-B" + ("\n\nSYS-C" if WireMessage("system", "SYS-C") in messages else "")
            assert f"<|im_start|>system\n{merged}<|im_end|>\n<|im_start|>user\nhello" in text
            assert text.count("SYS-") == merged.count("SYS-")
            messages += [WireMessage("assistant", read(reply)[0]), WireMessage("user", "go on")]
        finished = await finish(client, model)
    assert finished["counters"] == {"system_merged": 1, "verbatim": 2}
    assert len(finished["rows"]) == 2  # the late one changes the beginning of the prompt


async def test_a_template_that_shows_every_system_message_gets_them_where_they_stand(dialect: Dialect) -> None:
    path, write, _ = dialect
    model = make_model()
    async with serve(model) as (_, client):
        messages = [WireMessage("system", "A"), *HELLO, WireMessage("system", "B")]
        await client.post(path, {"model": "policy", **write(messages)})
        assert "hello<|im_end|>\n<|im_start|>system\nB<|im_end|>" in show_prompt(model)
        assert (await finish(client, model))["counters"] == {}


OPENAI_WORDS = "This model's maximum context length is 300 tokens. However, your messages resulted in {} tokens."


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_context_is_said_in_the_clients_own_words(dialect: Dialect, stream: bool) -> None:
    path, write, _ = dialect
    async with serve(make_model(), max_context=300) as (gateway, client):
        body = {"model": "policy", "stream": stream, **write([WireMessage("user", "hello " * 400)])}
        error = (await client.post(path, body, status=400))["error"]
        assert (await gateway.finish_session("one")).counters == {"refused_context_length_exceeded": 1}
    assert error["type"] == "invalid_request_error"
    if path == "/v1/messages":
        assert error["message"].startswith("prompt is too long: ")
        found, *rest = error["message"].removeprefix("prompt is too long: ").replace(" tokens", "").split()
        assert (int(found) > 400, rest) == (True, [">", "300", "maximum"])
        return
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == ("input" if "responses" in path else "messages")
    tokens = error["message"].split(" resulted in ")[1].split()[0]
    assert error["message"].startswith(OPENAI_WORDS.format(tokens))
    assert "context_length_exceeded" in error["message"]  # LangChain looks for it there


async def test_a_prompt_that_the_engine_finds_too_long_is_a_full_context(dialect: Dialect) -> None:
    path, write, _ = dialect
    model = make_model()

    def refuse(prompt: object, sampling: object) -> list[int]:
        raise PolicyError("too_long", "9 tokens of at most 8")

    model.policy = ScriptedPolicy(refuse)
    async with serve(model) as (_, client):
        error = (await client.post(path, {"model": "policy", **write(HELLO)}, status=400))["error"]
        assert (await finish(client, model))["counters"] == {"refused_context_length_exceeded": 1}
    if path == "/v1/messages":
        assert error["message"] == "prompt is too long: 9 tokens of at most 8"
    else:
        assert error["code"] == "context_length_exceeded"
        assert "maximum context length: 9 tokens of at most 8" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_last_turn_is_told_with_a_status_that_no_client_retries(dialect: Dialect, stream: bool) -> None:
    path, write, _ = dialect
    model = make_model()
    async with serve(model, max_turns=1) as (_, client):
        body = {"model": "policy", **write(HELLO)}
        await client.post(path, body)
        status = 404 if path == "/v1/chat/completions" else 400
        async with client.http.post(client.base + path, json={**body, "stream": stream}) as response:
            assert (response.status, response.headers["x-should-retry"]) == (status, "false")
            assert (await response.json())["error"]["message"] == "the session has had its 1 turns"
        assert (await finish(client, model))["counters"] == {"refused_turn_limit": 1}


NONE: dict[str, Any] = {"chat": "none", "responses": "none", "anthropic": {"type": "none"}}
FORCED: dict[str, list[Any]] = {
    "chat": ["required", {"type": "function", "function": {"name": "search"}}],
    "responses": ["required", {"type": "function", "name": "search"}],
    "anthropic": [{"type": "any"}, {"type": "tool", "name": "search"}],
}


@pytest.mark.parametrize("name", PATHS)
async def test_no_call_is_honoured_by_the_template_and_a_forced_one_is_refused_by_name(name: str) -> None:
    path, read = PATHS[name], READERS[name]
    model = make_model(f"I look.{TWO_CALLS}")
    async with serve(model) as (_, client):
        body = {"model": "policy", **write(name, HELLO)}
        text, calls = read(await client.post(path, {**body, "tool_choice": NONE[name]}))
        assert "# Tools" not in show_prompt(model)
        assert (text, calls) == (f"I look.{TWO_CALLS}", [])
        for choice in FORCED[name]:
            error = (await client.post(path, {**body, "tool_choice": choice}, status=400))["error"]
            assert "tool_choice" in error["message"]
            assert 'would have to be forced while sampling, which is not implemented; only "auto"' in error["message"]
        finished = await finish(client, model)
    assert finished["counters"] == {"tools_hidden": 1, "refused_bad_request": 2}


SINGLE: dict[str, dict[str, Any]] = {
    "chat": {"parallel_tool_calls": False},
    "responses": {"parallel_tool_calls": False},
    "anthropic": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
}


@pytest.mark.parametrize("name", PATHS)
async def test_of_parallel_calls_the_first_is_given_and_all_tokens_are_kept(name: str) -> None:
    path, read = PATHS[name], READERS[name]
    model = make_model(f"I look.{TWO_CALLS}")
    async with serve(model) as (_, client):
        body = {"model": "policy", **write(name, HELLO), **SINGLE[name]}
        reply = await client.post(path, body)
        assert [json.loads(arguments)["query"] for _, arguments in read(reply)[1]] == ["a"]
        body |= echo(name, reply)
        await client.post(path, body)
        finished = await finish(client, model)
    assert finished["counters"] == {"later_calls_dropped": 2, "verbatim": 1}
    assert len(finished["rows"]) == 1
    assert '"query": "b"' in model.tokenizer.decode(finished["turns"][0]["completion"]["token_ids"])
    assert show_prompt(model).count('"query": "b"') == 1  # the next prompt continues what was sampled


@pytest.mark.parametrize("name", PATHS)
async def test_numbers_that_javascript_writes_otherwise_are_the_same_call(name: str) -> None:
    path = PATHS[name]
    number = '1.0, "big": [1e3, 12345678901234567890, -0.0, 1E-7, {"deep": 2.50}]'
    model = make_model(f'<tool_call>\n{{"name": "search", "arguments": {{"count": {number}}}}}\n</tool_call>')
    in_javascript = '{"count":1,"big":[1000,12345678901234567000,0,1e-7,{"deep":2.5}]}'
    async with serve(model) as (_, client):
        body = {"model": "policy", **write(name, HELLO)}
        body |= echo(name, await client.post(path, body), lambda _: in_javascript)
        await client.post(path, body)
        finished = await finish(client, model)
    assert finished["counters"] == {"reserialised": 1}
    assert len(finished["rows"]) == 1


def test_what_is_another_value_in_javascript_is_another_call() -> None:
    ones = ["1", "1.0", "1e0", "10e-1"]
    assert len({WireCall("", "f", f'{{"x": {one}}}').canonical() for one in ones}) == 1
    others = ["1", "true", '"1"', "1.5", "null", "[1]", "0"]
    assert len({WireCall("", "f", f'{{"x": {other}}}').canonical() for other in others}) == len(others)
    # JavaScript has no infinity in JSON.
    assert WireCall("", "f", '{"x": 1e999}').canonical() == WireCall("", "f", '{"x": null}').canonical()


async def test_a_stream_begins_at_once_and_pings_until_its_answer_is_there(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write, read = dialect
    monkeypatch.setattr(server, "FIRST_PING_S", 0.05)
    monkeypatch.setattr(server, "PING_S", 0.1)
    model = make_model("It is there.")
    model.policy._latency = 1.0
    async with serve(model) as (_, client):
        body = {"model": "policy", **write(HELLO)}
        started = asyncio.get_running_loop().time()
        async with client.http.post(client.base + path, json={**body, "stream": True}) as response:
            assert asyncio.get_running_loop().time() - started < 0.8
            assert (response.status, response.content_type) == (200, "text/event-stream")
            text = await response.text()
        ping = 'event: ping\ndata: {"type": "ping"}\n\n' if path == "/v1/messages" else ": keep-alive\n\n"
        assert text.startswith(ping * 4)
        model.policy._latency = 0.0
        async with client.http.post(client.base + path, json={**body, "stream": True}) as response:
            at_once = await response.text()
        assert ping not in at_once
        assert len(text.replace(ping, "").splitlines()) == len(at_once.splitlines())
        assert read(await client.post(path, body))[0] == "It is there."
        assert len((await finish(client, model))["turns"]) == 3


async def test_no_client_takes_a_character_of_a_reply_for_the_end_of_an_event(dialect: Dialect) -> None:
    """Those on httpx's `iter_lines` end a line at U+2028, as `splitlines` does."""
    path, write, _ = dialect
    async with serve(make_model("第一行\u2028第二行\x85完")) as (_, client):
        body = {"model": "policy", **write(HELLO), "stream": True}
        async with client.http.post(client.base + path, json=body) as response:
            events = [line for line in (await response.text()).splitlines() if line.startswith("data: {")]
    read = [json.dumps(json.loads(line.removeprefix("data: ")), ensure_ascii=False) for line in events]
    assert any("第一行\u2028第二行\x85完" in event for event in read)


async def test_a_stream_that_fails_after_it_began_says_so_in_an_event(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write, _ = dialect
    monkeypatch.setattr(server, "FIRST_PING_S", 0.05)
    model = make_model()

    class Failing(ScriptedPolicy):
        async def generate(self, *arguments: Any, **options: Any) -> Any:
            await asyncio.sleep(0.3)
            raise PolicyError("unavailable", "the server is gone")

    model.policy = Failing(lambda prompt, sampling: [])
    async with serve(model) as (_, client):
        body = {"model": "policy", **write(HELLO), "stream": True}
        async with client.http.post(client.base + path, json=body) as reply:
            assert reply.status == 200
            lines = [line for line in (await reply.text()).splitlines() if line.startswith("data: ")]
        events = [json.loads(line.removeprefix("data: ")) for line in lines]
        event, *others = [each for each in events if each.get("type") != "ping"]
        assert event["error"]["message"] == "the server is gone"
        assert event.get("type") == (None if path == "/v1/chat/completions" else "error")
        assert [(each["type"], each["response"]["error"]["message"]) for each in others] == (
            [("response.failed", "the server is gone")] if path == "/v1/responses" else []
        )
        finished = await finish(client, model)
    assert finished["counters"] == {"refused_policy_unavailable": 1}
    assert finished["turns"] == []


async def test_items_that_are_named_by_their_ids_are_those_of_the_session() -> None:
    model = make_model(f"<think>\nhm\n</think>\n\nI look.{TWO_CALLS}")
    async with serve(model) as (_, client):
        body: dict[str, Any] = {"model": "policy", **write("responses", HELLO)}
        reply = await client.post("/v1/responses", body)
        outputs = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "ok"}
            for item in reply["output"]
            if item["type"] == "function_call"
        ]
        named = [{"type": "item_reference", "id": item["id"]} for item in reply["output"]]
        for items in (named, named[1:], [*reply["output"][:2], *named[2:]]):
            await client.post("/v1/responses", {**body, "input": [*body["input"], *items, *outputs]})
        unknown = [{"type": "item_reference", "id": "msg_1"}, *body["input"]]
        error = await client.post("/v1/responses", {**body, "input": unknown}, status=404)
        assert "'msg_1'" in error["error"]["message"]
        finished = await finish(client, model)
    assert finished["counters"] == {"verbatim": 1, "reasoning_dropped": 1, "refused_item_not_found": 1}
    first, *others = finished["turns"]
    held = [*first["prompt_ids"], *first["completion"]["token_ids"]]
    assert [turn["prompt_ids"][: len(held)] == held for turn in others] == [True, True, True]


async def test_the_model_sees_that_a_tool_failed() -> None:
    model = make_model(f"I look.{TWO_CALLS}")
    async with serve(model) as (_, client):
        body = {"model": "policy", **write("anthropic", HELLO)}
        fields = echo("anthropic", await client.post("/v1/messages", body))
        blocks = [block for message in fields["messages"] for block in message["content"]]
        first, second = [block for block in blocks if block["type"] == "tool_result"]
        first |= {"content": "exit code 1", "is_error": True}
        parts = [{"type": "text", "text": text} for text in ("Error: no such file", "2 others")]
        second |= {"content": parts, "is_error": True}
        await client.post("/v1/messages", {**body, **fields})
        shown = show_prompt(model)
    assert "<tool_response>\nError: exit code 1\n</tool_response>" in shown
    assert "<tool_response>\nError: no such file\n2 others\n</tool_response>" in shown


async def test_fields_without_effect_are_accepted_and_a_strict_tool_is_noted(dialect: Dialect) -> None:
    path, write, _ = dialect
    model = make_model()
    async with serve(model) as (_, client):
        body = {"model": "policy", "cache_control": {"type": "ephemeral"}, **write(HELLO)}
        tool = copy.deepcopy(body["tools"][0])
        tool.get("function", tool)["strict"] = True
        for _ in range(2):
            await client.post(path, {**body, "tools": [tool]})
        assert (await finish(client, model))["counters"] == {"strict_ignored": 1}


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
