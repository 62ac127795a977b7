"""The gateway over HTTP: three protocols, whole and as events, errors with their path, limits and lost clients."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from core.gateway import Gateway, SessionSettings, WireCall, WireMessage, serve_gateway
from core.inspect.drift import DriftChecker
from core.policy.base import PolicyError
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import RolloutError
from core.runs.record import read_rollouts
from core.types import Sampling
from scripts.serve_gateway import hold_record, open_record
from tests.kit import script_policy, until

from .agents import ANTHROPIC_TOOLS, CHAT_TOOLS, RESPONSES_TOOLS, WRITERS
from .model import RandomModel, check_contexts
from .templates import make_tokenizer

JSON = {"Content-Type": "application/json"}
HELLO: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "hello"}]}


class Client:
    """Sends requests to one session and keeps the conversation in the form of its protocol."""

    def __init__(self, http: aiohttp.ClientSession, url: str, session: str):
        self.http = http
        self.url = url
        self.base = f"{url}/s/{session}"

    def of(self, session: str) -> Client:
        return Client(self.http, self.url, session)

    async def post(self, path: str, body: Any, status: int = 200, **options: Any) -> Any:
        async with self.http.post(self.base + path, json=body, **options) as response:
            text = await response.text()
            assert response.status == status, text
            if response.content_type == "text/event-stream":
                return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
            return json.loads(text)


@asynccontextmanager
async def serve(
    model: RandomModel, options: Mapping[str, Any] | None = None, listener: Any = None, **settings: Any
) -> AsyncIterator[tuple[Gateway, Client]]:
    """Serve a session that is open already, unless `options` of the gateway open it on request."""
    wanted = SessionSettings(**{"max_context": 100_000, **settings})
    gateway = Gateway({"policy": model.policy}, model.tokenizer, wanted, **(options or {}))
    if not (options or {}).get("open_on_request"):
        gateway.open_session("one", Sampling(max_new_tokens=4096))
    async with serve_gateway(gateway, listener) as url, aiohttp.ClientSession() as http:
        yield gateway, Client(http, url, "one")


def make_model(**options: Any) -> RandomModel:
    return RandomModel(make_tokenizer("qwen3"), "hermes", **options)


async def finish(client: Client, model: RandomModel) -> dict[str, Any]:
    """Finish the session over HTTP and check that its rows train what was sampled."""
    finished = await client.post("/finish", {})
    rows = [(tuple(row["tokens"]), row["loss_mask"]) for row in finished["rows"]]
    check_contexts(model.policy.calls, rows)
    sampled = sum(len(turn["completion"]["token_ids"]) for turn in finished["turns"] if turn["trained"])
    assert sum(sum(row["loss_mask"]) for row in finished["rows"]) == sampled
    await client.post("/finish", {}, status=410)
    return finished


def join_chunks(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for part in delta.get("tool_calls", ()):
                if "id" in part:
                    message["tool_calls"].append({key: part[key] for key in ("id", "type", "function")})
                else:
                    message["tool_calls"][part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return message


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_messages(stream):
    model = make_model(calling=1.0, seed=2)
    async with serve(model) as (_, client):
        messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
        body = {"model": "policy", "system": [{"type": "text", "text": "-", "cache_control": {"type": "ephemeral"}}]}
        body |= {"messages": messages, "tools": ANTHROPIC_TOOLS, "max_tokens": 900}
        for _ in range(3):
            prompt = {name: value for name, value in body.items() if name != "max_tokens"}
            counted = await client.post("/v1/messages/count_tokens", prompt)
            reply = await client.post("/v1/messages", {**body, "stream": stream})
            content = join_blocks(reply) if stream else reply["content"]
            assert counted["input_tokens"] == len(model.policy.calls[-1].prompt_ids)
            messages += [{"role": "assistant", "content": content}]
            calls = [block for block in content if block["type"] == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "ok"} for call in calls]
            messages += [{"role": "user", "content": results}]
        finished = await finish(client, model)
    assert set(finished["counters"]) <= {"verbatim", "reserialised"}
    assert len(finished["rows"]) == 1


def join_blocks(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    blocks: list[dict[str, Any]] = []
    texts = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "input_json_delta":
                blocks[-1]["input"] = json.loads(delta["partial_json"])
            else:
                name = texts[delta["type"]]
                blocks[-1][name] += delta[name]
    return blocks


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_responses(stream, stateful):
    model = make_model(calling=1.0, thinking=1.0, seed=3)
    async with serve(model) as (_, client):
        items: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
        body: dict[str, Any] = {"model": "policy", "tools": RESPONSES_TOOLS, "stream": stream}
        for _ in range(3):
            reply = await client.post("/v1/responses", {**body, "input": items})
            whole = reply[-1]["response"] if stream else reply
            if stream:
                assert [reply[0]["type"], reply[-1]["type"]] == ["response.created", "response.completed"]
            calls = [item for item in whole["output"] if item["type"] == "function_call"]
            results = [{"type": "function_call_output", "call_id": c["call_id"], "output": "ok"} for c in calls]
            if stateful:
                items, body["previous_response_id"] = results, whole["id"]
            else:
                items += [*whole["output"], *results]
        finished = await finish(client, model)
    assert finished["counters"] == {"verbatim": 2}
    assert len(finished["rows"]) == 1


async def test_an_output_between_two_calls_of_one_answer_follows_it():
    model = make_model(calling=1.0, seed=4)
    async with serve(model) as (_, client):
        whole: dict[str, Any] = {"output": []}
        while sum(item["type"] == "function_call" for item in whole["output"]) < 2:
            whole = await client.post("/v1/responses", {"model": "policy", "tools": RESPONSES_TOOLS, "input": "hello"})
        items: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
        for item in whole["output"]:
            items.append(item)
            if item["type"] == "function_call":
                items.append({"type": "function_call_output", "call_id": item["call_id"], "output": item["id"]})
        await client.post("/v1/responses", {"model": "policy", "tools": RESPONSES_TOOLS, "input": items})
        counters = (await finish(client, model))["counters"]
    assert "edited" not in counters
    assert "foreign" not in counters


async def test_a_tool_of_a_namespace_is_called_by_its_full_name():
    model = make_model(thinking=0.0)
    inner = {"type": "function", "name": "wait", "description": "Wait.", "parameters": {"type": "object"}}
    tools = [*RESPONSES_TOOLS, {"type": "namespace", "name": "team", "description": "Helpers.", "tools": [inner]}]
    text = '<tool_call>\n{"name": "team.wait", "arguments": {}}\n</tool_call>'
    model.policy = ScriptedPolicy(lambda prompt, _: [*model.encode(text), model.tokenizer.eos_token_id])
    async with serve(model) as (_, client):
        body = {"model": "policy", "tools": tools, "input": [{"role": "user", "content": "hello"}]}
        for stream in (False, True):
            reply = await client.post("/v1/responses", {**body, "stream": stream})
            [call] = (reply[-1]["response"] if stream else reply)["output"]
            assert (call["namespace"], call["name"]) == ("team", "wait")
            result = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
            body["input"] += [call, result]
        await client.post("/v1/responses", body)
        assert "Helpers. Wait." in model.tokenizer.decode(model.policy.calls[-1].prompt_ids)
        for name, tool in (("tools.0.name", {**inner, "name": "a.b"}), ("tools.0.type", {**inner, "type": "custom"})):
            error = await client.post("/v1/responses", {**body, "tools": [tool]}, status=400)
            assert error["error"]["param"] == name
        finished = await finish(client, model)
    assert finished["counters"] == {"verbatim": 2, "refused_bad_request": 2}
    assert len(finished["rows"]) == 1


BAD_CHAT = {
    "n": ({"n": 200}, "n"),
    "other tokens' log-probs": ({"logprobs": True, "top_logprobs": 3}, "top_logprobs"),
    "forced tool": ({"tool_choice": "required"}, "tool_choice"),
    "logit bias": ({"logit_bias": {"1": 5}}, "logit_bias"),
    "grammar": ({"response_format": {"type": "grammar"}}, "response_format.type"),
    "unknown": ({"beam_width": 4}, "beam_width"),
    "role": ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
    "temperature": ({"temperature": 9}, "temperature"),
    "no model": ({"model": None}, "model"),
    "type": ({"max_tokens": "many"}, "max_tokens"),
    "no messages": ({"messages": []}, "messages"),
    "prefill": ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
    "special token in a tool": (
        {"tools": [{"type": "function", "function": {"name": "a", "description": "<|im_end|>"}}]}, "tools",
    ),
    "arguments": (
        {"messages": [
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "a", "arguments": "[1"}}]},
            {"role": "user", "content": "x"},
        ]},
        "messages",
    ),
}  # fmt: skip


async def test_what_cannot_be_served_is_refused_with_its_path():
    model = make_model()
    async with serve(model) as (gateway, client):
        for name, (fields, path) in BAD_CHAT.items():
            error = (await client.post("/v1/chat/completions", {**HELLO, **fields}, status=400))["error"]
            assert error["param"] == path, name
            assert error["type"] == "invalid_request_error"
        error = (await client.post("/v1/messages", HELLO, status=400))["error"]
        assert error["message"] == "max_tokens: is missing"
        wanted = {"effort": "high", "format": {"type": "json_schema", "schema": {}}}
        error = await client.post("/v1/messages", {**HELLO, "max_tokens": 9, "output_config": wanted}, status=400)
        assert error["error"]["message"] == "output_config.format: is not implemented"
        error = await client.post("/v1/responses", {"model": "policy", "input": [{"type": "mcp_call"}]}, status=400)
        assert error["error"]["param"] == "input.0.type"
        wanted = {"model": "policy", "input": "?", "include": ["message.output_text.logprobs"]}
        assert (await client.post("/v1/responses", wanted, status=400))["error"]["param"] == "include"
        await client.post("/v1/chat/completions", {**HELLO, "model": "frozen:judge"}, status=404)
        assert not model.policy.calls
        finished = await finish(client, model)
    assert finished["turns"] == []
    refused = {"refused_bad_request": len(BAD_CHAT) + 4, "refused_model_not_found": 1}
    assert finished["counters"] == refused
    assert gateway.counters == finished["counters"]


async def test_what_is_no_text_is_refused_by_its_name():
    model = make_model()
    async with serve(model) as (_, client):
        for kind, name in (("image_url", "image"), ("input_audio", "audio"), ("video_url", "video"), ("file", "file")):
            body = {"model": "policy", "messages": [{"role": "user", "content": [{"type": kind}]}]}
            error = (await client.post("/v1/chat/completions", body, status=400))["error"]
            assert (error["param"], error["code"]) == ("messages.0.content.0.type", f"no_{name}")
            assert f"leave the {name} out" in error["message"]
        for kind in ("image", "document"):
            result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": kind}]}
            for block in ({"type": kind}, result):
                body = {"model": "policy", "max_tokens": 9, "messages": [{"role": "user", "content": [block]}]}
                assert kind in (await client.post("/v1/messages", body, status=400))["error"]["message"]
        for item in ({"type": "image_generation_call"}, {"role": "user", "content": [{"type": "input_image"}]}):
            error = await client.post("/v1/responses", {"model": "m", "input": [item]}, status=400)
            assert "image" in error["error"]["code"]
        finished = await finish(client, model)
    assert finished["counters"]["refused_no_image"] == 5


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_gives_the_tokens_of_prompt_and_answers(stream):
    """In vLLM's form: in a stream the prompt's ids are in the first chunk, and an answer's join over its chunks."""
    model = make_model(calling=1.0, seed=1)
    messages: list[dict[str, Any]] = [{"role": "system", "content": "-"}, {"role": "user", "content": "hello"}]
    wants = {"return_token_ids": True, "logprobs": True, "top_logprobs": 0, "extra_body": {"return_token_ids": True}}
    wants |= {"max_tokens": 900, **({"stream_options": {"include_usage": True}} if stream else {})}
    async with serve(model) as (_, client):
        for _ in range(2):
            body = {"model": "policy", "messages": messages, "tools": CHAT_TOOLS, "n": 2, "stream": stream, **wants}
            reply = await client.post("/v1/chat/completions", body)
            chunks = reply if stream else [reply]
            calls = model.policy.calls[-2:]
            assert chunks[-1]["usage"]["prompt_tokens"] == len(calls[0].prompt_ids)
            assert calls[0].sampling.max_new_tokens == 900
            assert calls[0].sampling.stop_token_ids == (model.tokenizer.eos_token_id,), "a server may not know it"
            asked = [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk]
            assert asked == [list(calls[0].prompt_ids)] == [chunks[0]["prompt_token_ids"]]
            choices = [choice for chunk in chunks for choice in chunk["choices"]]
            for number in range(2):
                mine = [choice for choice in choices if choice["index"] == number]
                ids = [i for choice in mine for i in choice.get("token_ids", ())]
                logged = [entry for choice in mine for entry in (choice["logprobs"] or {"content": []})["content"]]
                said = [(entry["token"], entry["logprob"]) for entry in logged]
                assert said == [(f"token_id:{i}", -0.5) for i in ids]
                assert ids[-1] == model.tokenizer.eos_token_id
                given = join_chunks([{"choices": mine}]) if stream else mine[0]["message"]
            results = [{"role": "tool", "tool_call_id": c["id"], "content": "-"} for c in given["tool_calls"]]
            messages += [given, *results]
        body = {"model": "policy", "messages": messages, "tools": CHAT_TOOLS, "stream": stream}
        plain = await client.post("/v1/chat/completions", body)
        for chunk in plain if stream else [plain]:
            assert "prompt_token_ids" not in chunk
            assert all("token_ids" not in choice and choice["logprobs"] is None for choice in chunk["choices"])
        finished = await finish(client, model)
    assert [turn["trained"] for turn in finished["turns"]] == [True] * 5
    assert finished["counters"] == {"verbatim": 2}
    assert len(finished["rows"]) == 3, "the two first answers that nothing follows, and the conversation"


async def test_several_answers_have_seeds_of_their_own_and_count_together_or_not_at_all():
    model = make_model(calling=0)
    body = HELLO | {"n": 3, "seed": 7}
    async with serve(model, max_turns=5) as (gateway, client):
        gateway.open_session("free")
        async with client.http.post(f"{client.base[:-3]}free/v1/chat/completions", json=body) as response:
            usage = (await response.json())["usage"]
        assert [call.sampling.seed for call in model.policy.calls] == [7, 8, 9]
        finished = await gateway.finish_session("free")
        assert usage["completion_tokens"] == sum(len(turn.completion.token_ids) for turn in finished.turns)
        await client.post("/v1/chat/completions", body)
        error = await client.post("/v1/chat/completions", body, status=404)
        assert error["error"]["code"] == "turn_limit"
        counters = (await finish(client, model))["counters"]
    assert counters == {"unanswered": 2, "refused_turn_limit": 1}
    model.policy = script_policy(model.tokenizer, ["fine", PolicyError("engine", "it broke")])
    async with serve(model) as (_, client):
        await client.post("/v1/chat/completions", {**body, "n": 2}, status=500)
        finished = await finish(client, model)
    assert [turn["trained"] for turn in finished["turns"]] == [False]
    assert finished["counters"] == {"unanswered": 1, "refused_policy_engine": 1}


async def test_json_is_asked_of_the_policy_but_never_forced():
    model = make_model()
    model.policy = script_policy(model.tokenizer, ['{"a": 1}', "no", '{"a": 1} and more'])
    schema = {"name": "a", "schema": {"type": "object"}, "strict": True}
    question = {"role": "user", "content": "hello"}
    async with serve(model) as (_, client):
        for wanted in ({"type": "json_object"}, {"type": "json_schema", "json_schema": schema}):
            body = {"model": "policy", "messages": [question], "response_format": wanted}
            await client.post("/v1/chat/completions", body)
        text = {"format": {"type": "json_schema", **schema}}
        await client.post("/v1/responses", {"model": "policy", "input": [question], "text": text})
        finished = await finish(client, model)
    assert finished["counters"] == {"format_unforced": 1, "format_missed": 2}


async def test_an_agents_own_edges_label_the_turns_that_they_lead_to():
    """ACP's names of requests come with them, and its edges when the session is finished."""
    model, recorded = make_model(calling=0), []
    edges = [("task", "child", "subagent_call"), ("child", "task", "subagent_return"), ("task", "gone", "compaction")]
    async with serve(model) as (gateway, client):
        gateway._on_finish = lambda finished, written: recorded.extend(finished.events)
        for name in ("task", "child", None):
            headers = {"X-ACP-Model-Request-ID": name} if name else {}
            await client.post("/v1/chat/completions", HELLO, headers=headers)
        wrong = {"edges": [{"source_request_id": "task", "target_request_id": "child", "type": "a b"}]}
        assert (await client.post("/finish", wrong, status=400))["error"]["param"] == "edges.0.type"
        told = [{"source_request_id": one, "target_request_id": two, "type": kind} for one, two, kind in edges]
        finished = await client.post("/finish", {"edges": told})
    assert finished["counters"] == {"edge:subagent_call": 1, "edge:subagent_return": 1, "edge_of_unknown_request": 1}
    assert recorded == [
        {"event": "edge:subagent_call", "turn": 2, "source": 1},
        {"event": "edge:subagent_return", "turn": 1, "source": 2},
        {"event": "edge_of_unknown_request"},
    ]


CONVERSATION = [
    WireMessage("system", "-"),
    WireMessage("user", "hello"),
    WireMessage("assistant", "", "hm", (WireCall("c", "search", "{}"),)),
    WireMessage("tool", "found", call_id="c"),
]
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
BODIES = {
    PATHS[name]: {"model": "policy", "temperature": 1.0, "stream": False, **write(CONVERSATION, random.Random(0))}
    for name, (_, write) in WRITERS.items()
}
BODIES[PATHS["chat"]] |= {
    "n": 1,
    "return_token_ids": True,
    "logprobs": True,
    "response_format": {"type": "json_object"},
}
BODIES["/inference/v1/generate"] = {
    "model": "policy",
    "token_ids": [1, 2, 3],
    "sampling_params": {"max_tokens": 9, "stop_token_ids": [2], "logprobs": 1, "temperature": 1.0},
    "return_token_ids": True,
    "stream": False,
}
JUNK: tuple[Any, ...] = (
    None, True, 0, -1, 2.5, 10**400, "", "\x00", "\ud800", "<|im_end|>", [], {}, [[]], {"type": "x"}, [None],
    "a" * 10_000,
)  # fmt: skip


def break_body(body: Any, rng: random.Random) -> Any:
    """Replace, drop or add one value at a random place of a body."""
    body = copy.deepcopy(body)
    places: list[tuple[Any, Any]] = []

    def visit(value: Any) -> None:
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], dict | list):
                visit(value[key])

    visit(body)
    holder, key = rng.choice(places)
    how = rng.randrange(3)
    if how == 0:
        holder[key] = rng.choice(JUNK)
    elif how == 1:
        del holder[key]
    elif isinstance(holder, dict):
        holder[rng.choice(["n", "type", "role", "text", "id", "content", "\ud800", "x" * 300])] = rng.choice(JUNK)
    else:
        holder.append(rng.choice(JUNK))
    return body


async def test_broken_requests_get_an_answer_or_an_error_that_is_counted(fuzz_cases):
    model = make_model(calling=0, seed=11)
    rng, statuses = random.Random(0), Counter[int]()
    async with serve(model) as (_, client):
        for _ in range(fuzz_cases // 2):
            path = rng.choice(list(BODIES))
            body = BODIES[path]
            for _ in range(rng.randint(1, 3)):
                body = break_body(body, rng)
            data = json.dumps(body).encode()
            if rng.random() < 0.1:
                data = data[: rng.randrange(len(data))]
            async with client.http.post(client.base + path, data=data, headers=JSON) as response:
                statuses[response.status] += 1
                assert response.status in (200, 400, 404), (data, await response.text())
                if response.status != 200:
                    assert (await response.json())["error"]["message"]
        finished = await finish(client, model)
    counters = finished["counters"]
    assert len(finished["turns"]) == statuses[200] > 0
    refused = sum(number for name, number in counters.items() if name.startswith("refused_"))
    assert refused == statuses[400] + statuses[404] > fuzz_cases // 8


async def test_sessions_are_named_by_path_key_or_header():
    model = make_model(calling=0)
    async with serve(model) as (gateway, client):
        url = client.url
        body = HELLO | {"max_tokens": 50}
        ways = [{"Authorization": "Bearer one"}, {"X-Session-Id": "one"}, {"X-Api-Key": "one"}]
        for headers in ways:
            async with client.http.post(f"{url}/v1/messages", json=body, headers=headers) as response:
                assert response.status == 200
        async with client.http.post(f"{url}/v1/messages", json=body) as response:
            assert response.status == 404
        for at, asks in ((f"{url}/v1", {}), (f"{url}/s/unknown/v1", {}), (f"{url}/v1", {"X-Api-Key": "EMPTY"})):
            async with client.http.get(f"{at}/models", headers=asks) as response:
                assert [each["id"] for each in (await response.json())["data"]] == ["policy"]
        async with client.http.get(f"{url}/health") as response:
            assert (await response.json())["sessions"] == 1, "whoever looks around opens none"
        with pytest.raises(ValueError, match="open or was closed"):
            gateway.open_session("one")
        assert len((await finish(client, model))["turns"]) == len(ways)
        error = (await client.post("/v1/messages", body, status=410))["error"]
        assert "is closed" in error["message"]


async def test_a_session_that_ends_cancels_what_still_runs():
    model = make_model(calling=0)
    model.policy._latency = 30.0
    async with serve(model) as (gateway, client):
        request = asyncio.create_task(client.post("/v1/chat/completions", HELLO, status=410))
        await until(lambda: model.policy.calls)
        finished = await gateway.finish_session("one")
        assert "is closed" in (await request)["error"]["message"]
    assert finished.turns == ()
    assert model.policy.cancelled == 1


async def test_odd_names_and_ids_are_answered():
    model = make_model(calling=0, thinking=0, seed=5)
    async with serve(model, {"open_on_request": True}) as (_, client):
        user = {"role": "user", "content": "hello"}
        reply = await client.post("/v1/chat/completions", {"model": "\ud800", "messages": [user]})
        assert reply["model"] == "\ud800"
        named = {"json": BODIES["/v1/messages"], "headers": {"X-Api-Key": "a/b"}}
        async with client.http.post(f"{client.url}/v1/messages", **named) as bad:
            assert bad.status == 400
        salt = reply["id"].removeprefix("chatcmpl_").rpartition("n")[0]
        call = {"id": f"call_{salt}n{'1' * 5000}", "type": "function", "function": {"name": "a", "arguments": "{}"}}
        messages = [user, {"role": "assistant", "tool_calls": [call]}, user]
        await client.post("/v1/chat/completions", {"model": "policy", "messages": messages})
        assert len((await client.post("/finish", {}))["turns"]) == 2
        await client.of("typo").post("/finish", {}, status=404)


async def test_a_chain_of_responses_may_be_longer_than_pythons_stack():
    model = make_model(calling=0, thinking=0, seed=5)
    async with serve(model) as (gateway, client):
        link = (await client.post("/v1/responses", {"model": "policy", "input": "hello"}))["id"]
        tree = gateway._sessions["one"]._tree
        for number in range(2, 1200):
            answer = tree.answers[number - 1]
            continuation = replace(answer.continuation, parent=answer, new_messages=())
            tree.add(replace(answer, number=number, wire_key=tree.make_wire_key(number), continuation=continuation))
        link = answer.wire_id("resp")
        await client.post("/v1/responses", {"model": "policy", "input": "again", "previous_response_id": link})


async def test_instructions_are_those_of_one_request_also_where_it_continues_a_response():
    model = make_model(calling=0, thinking=0, seed=6)
    async with serve(model) as (_, client):
        link: dict[str, str] = {}
        for instructions in ("SYS", "SYS", "OTHER", None):
            body = {"model": "policy", "input": "hello", "instructions": instructions, **link}
            link = {"previous_response_id": (await client.post("/v1/responses", body))["id"]}
            text = model.tokenizer.decode(model.policy.calls[-1].prompt_ids)
            assert text.count("<|im_start|>system") == (instructions is not None)
            assert instructions is None or f"system\n{instructions}<|im_end|>" in text
        assert len((await finish(client, model))["rows"]) == 3


async def test_a_stop_text_ends_the_answer_and_stays_in_its_tokens():
    model = make_model()
    tokenizer = model.tokenizer
    ids = tokenizer.encode("the answer STOP more", add_special_tokens=False)
    policy = model.policy = ScriptedPolicy(lambda prompt, sampling: ids, decode=tokenizer.decode)
    async with serve(model, max_context=1000) as (_, client):
        body: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 90}
        reply = await client.post("/v1/messages", {**body, "stop_sequences": ["OP", "never"]})
        assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "OP")
        assert reply["content"] == [{"type": "text", "text": "the answer ST"}]
        body["messages"] += [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": "go on"}]
        await client.post("/v1/messages", body)
        for stops in ([""], [None]):
            await client.post("/v1/messages", {**body, "stop_sequences": stops}, status=400)
    held = (*policy.calls[0].prompt_ids, *tokenizer.encode("the answer STOP", add_special_tokens=False))
    assert policy.calls[1].prompt_ids[: len(held)] == held


async def test_a_retry_untrains_no_sibling_that_the_client_kept():
    model = make_model(calling=0)
    async with serve(model) as (_, client):
        replies = [await client.post("/v1/chat/completions", HELLO) for _ in range(2)]
        following = [*HELLO["messages"], replies[1]["choices"][0]["message"], {"role": "user", "content": "go on"}]
        await client.post("/v1/chat/completions", {"model": "policy", "messages": following})
        model.policy._latency = 30.0
        lost = asyncio.create_task(client.post("/v1/chat/completions", HELLO))
        await until(lambda: len(model.policy.calls) >= 4)
        lost.cancel()
        await until(lambda: model.policy.cancelled)
        model.policy._latency = 0.0
        await client.post("/v1/chat/completions", HELLO, headers={"X-Stainless-Retry-Count": "1"})
        assert all(turn["trained"] for turn in (await finish(client, model))["turns"])


async def test_a_retry_replaces_the_answer_that_was_thrown_away():
    model = make_model(calling=0)
    async with serve(model) as (_, client):
        await client.post("/v1/chat/completions", HELLO)
        await client.post("/v1/chat/completions", HELLO, headers={"X-Stainless-Retry-Count": "1"})
        finished = await finish(client, model)
    assert [turn["trained"] for turn in finished["turns"]] == [False, True]
    assert finished["counters"] == {"retried": 1}


async def test_failures_of_the_policy_have_a_status():
    kinds = ("bad_request", "unavailable", "timeout", "engine")
    errors = iter([*(PolicyError(kind, "the reason") for kind in kinds), RolloutError("aborted", "the reason")])
    model = make_model()
    model.policy = ScriptedPolicy(lambda prompt, sampling: next(errors))
    async with serve(model) as (_, client):
        for status in (400, 503, 504, 500, 410):
            error = (await client.post("/v1/chat/completions", HELLO, status=status))["error"]
            assert error["message"] == "the reason"
        finished = await client.post("/finish", {})
    counted = [*(f"refused_policy_{kind}" for kind in kinds), "refused_rollout_aborted"]
    assert finished["counters"] == dict.fromkeys(counted, 1)
    assert finished["turns"] == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_is_killed_in_mid_stream_has_no_trained_turn(stream):
    """It reads a little and resets its connection, while most of the answer still waits to be sent."""
    model = make_model()
    ids = model.tokenizer.encode(" answer", add_special_tokens=False) * 40_000
    model.policy = ScriptedPolicy(lambda prompt, sampling: ids)
    body = {"model": "policy", "messages": [{"role": "user", "content": "hello"}], "stream": stream}
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # the kernel takes little of the answer
    async with serve(model, {"open_on_request": True}, listener, max_context=1_000_000) as (gateway, client):
        loop, data = asyncio.get_running_loop(), json.dumps(body).encode()
        head = "POST /s/one/v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(data)}\r\n\r\n"
        with socket.socket() as killed:
            killed.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            killed.setblocking(False)
            await loop.sock_connect(killed, listener.getsockname())
            await loop.sock_sendall(killed, head.encode() + data)
            assert (await loop.sock_recv(killed, 1000)).startswith(b"HTTP/1.1 200 OK")
            killed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await until(lambda: gateway._sessions["one"].counters)
        await client.post("/v1/chat/completions", body, headers={"X-Stainless-Retry-Count": "1"})
        finished = await client.post("/finish", {})
    assert finished["counters"] == {"unanswered": 1}
    assert [turn["trained"] for turn in finished["turns"]] == [False, True]
    assert [sum(row["loss_mask"]) for row in finished["rows"]] == [len(ids)]


async def test_finished_sessions_are_recorded_token_for_token(tmp_path):
    model = make_model(calling=0)
    for name in ("one", "two"):  # two processes, one after the other, and one record
        options = {"open_on_request": True, "on_finish": open_record(tmp_path, model.tokenizer)[0]}
        async with serve(model, options) as (_, one):
            client = one.of(name)
            messages = [{"role": "user", "content": "hello"}]
            for _ in range(2):
                reply = await client.post("/v1/chat/completions", {"model": "policy", "messages": messages})
                messages += [reply["choices"][0]["message"], {"role": "user", "content": "go on"}]
            async with client.http.post(f"{client.base}/finish") as response:
                finished = await response.json()
        *_, rollout = read_rollouts(tmp_path / "rollouts.jsonl.gz")
        assert (rollout.task_id, rollout.reward, rollout.advantage) == (name, None, None)
        assert [turn.sampled for turn in rollout.turns] == [t["completion"]["token_ids"] for t in finished["turns"]]
        assert [row.length for row in rollout.rows] == [len(row["tokens"]) for row in finished["rows"]]
        assert rollout.log["wire"] == [{"event": "verbatim", "turn": 2}]
        assert list(DriftChecker(model.tokenizer).check(rollout, name)) == []
    assert [rollout.group for rollout in read_rollouts(tmp_path / "rollouts.jsonl.gz")] == [0, 1]


def test_a_record_has_one_gateway_at_a_time(tmp_path):
    with hold_record(tmp_path), pytest.raises(ValueError, match="another gateway records there"):
        hold_record(tmp_path).__enter__()
    with hold_record(tmp_path), hold_record(None):
        pass


async def test_an_idle_session_is_finished_and_told():
    model = make_model(calling=0)
    model.policy._latency = 0.4  # a request that runs for longer than the limit is not idle
    told: list[tuple[str, Any]] = []

    def tell(finished: Any, written: Any) -> None:
        told.append((finished.session_id, written))

    async with serve(model, {"open_on_request": True, "on_finish": tell}, max_idle_s=0.2) as (gateway, client):
        await client.post("/v1/chat/completions", HELLO)
        await until(lambda: told)  # a busy machine may have told it before the reply was read
        await client.post("/v1/chat/completions", HELLO, status=410)
    [(name, written)] = told
    assert (name, len(written["rows"])) == ("one", 1)
    assert gateway.counters["idle"] == 1


async def test_a_session_that_could_not_be_recorded_does_not_count_as_recorded():
    def fail(finished: object, written: object) -> None:
        raise OSError("no space left")

    model = make_model(seed=1)
    async with serve(model, {"on_finish": fail}) as (_, client):
        await client.post("/finish", {}, status=500)
        await client.post("/finish", {}, status=404)


async def test_a_gateway_is_full_at_its_tokens_and_knows_what_was_finished_before():
    model = make_model(seed=1)
    options = {"open_on_request": True, "closed": ["done"], "max_kept_tokens": 60}
    body = {"model": "policy", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 40}
    async with serve(model, options) as (gateway, one):
        await one.of("done").post("/v1/chat/completions", body, status=410)
        two = one.of("two")
        prompt = {name: body[name] for name in ("model", "messages")}
        counted = await two.post("/v1/messages/count_tokens", prompt)
        assert (counted["input_tokens"] > 0, list(gateway._sessions)) == (True, []), "who counts tokens opens none"
        while gateway._sessions.get("one") is None or gateway._sessions["one"].kept_tokens <= 60:
            await one.post("/v1/chat/completions", body)
        refused = await two.post("/v1/chat/completions", body, status=503)
        assert "open sessions hold" in refused["error"]["message"]
        assert list(gateway._sessions) == ["one"]
        await one.post("/v1/chat/completions", body)  # an open session goes on
        await one.post("/finish", {})
        await two.post("/v1/chat/completions", body)
