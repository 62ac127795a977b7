"""Bad requests to every server: each is answered or closed, none gets a 500, and others are served meanwhile.

The gateway's own are in tests/unit/gateway, but for its slow streams. `--fuzz 100000` makes these tests long.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from pydantic import BaseModel

from agentic.toolorchestra.scripted_experts import ChatBody, make_service
from core.engine.engine import Engine
from core.engine.policy import EmbeddedPolicy
from core.engine.server import Server
from core.engine.wire import GenerateBody, UpdateWeightsBody
from core.gateway import Gateway, SessionSettings, serve_gateway
from core.gateway import gateway as gateway_server
from core.policy.scripted import ScriptedPolicy
from core.retrieval.batching import Batcher
from core.retrieval.corpus import Corpus
from core.retrieval.encoders import HashingEncoder
from core.retrieval.server import PageRequest, RetrievalServer, SearchRequest
from core.vllm_wire import TokensBody
from tests import kit
from tests.faults.requests import make_request
from tests.unit.gateway.templates import make_tokenizer

ANSWER_S = 20.0
"""Bounds the seconds to an answer: a server that takes longer hangs."""

PATIENCE_S = 2.0
AT_ONCE = 8


@pytest.fixture
def engine_app(tmp_path: Any) -> web.Application:
    folder = kit.save_model(tmp_path / "model", seed=0, num_hidden_layers=1)
    engine = Engine.from_pretrained(folder, device="cpu", max_model_len=256, kv_tokens=2048)
    return Server(EmbeddedPolicy(engine, threaded=True), "tiny").app()


@pytest.fixture
def retrieval_app(tmp_path: Any) -> web.Application:
    lines = [json.dumps({"id": str(row), "contents": f"fox {row}"}) for row in range(20)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    retriever = kit.make_retriever(Corpus(tmp_path / "corpus.jsonl"), HashingEncoder(64))
    return RetrievalServer(retriever, Batcher(retriever.search)).make_app()


async def send(client: TestClient[Any, Any], request: bytes) -> tuple[int, bytes]:
    """Send bytes and return status and body of the reply; 0 where the server closed without one.

    A server that waits for more bytes is told after `PATIENCE_S` that there are none.
    """
    reader, writer = await asyncio.open_connection(client.host, client.port)
    try:
        writer.write(request)
        try:
            async with asyncio.timeout(PATIENCE_S):
                head = await reader.readline()
        except TimeoutError:
            writer.write_eof()
            async with asyncio.timeout(ANSWER_S):
                head = await reader.readline()
        async with asyncio.timeout(ANSWER_S):
            rest = await reader.read()
    except ConnectionError:
        return 0, b""
    finally:
        writer.close()
    return int(head.split()[1]) if head else 0, rest.partition(b"\r\n\r\n")[2]


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


async def attack(
    app: web.Application,
    bodies: dict[str, tuple[type[BaseModel], dict[str, Any]]],
    serve_one: Callable[[TestClient[Any, Any]], Awaitable[None]],
    cases: int,
) -> Counter[int]:
    """Send bad requests, some at once, and a good one beside each of these. Return how often each status came.

    `bodies` maps a path to the type of its bodies and to fields of a good one.
    """
    schemas = {path: kind.model_json_schema() for path, (kind, _) in bodies.items()}
    rng, statuses = Random(0), Counter[int]()
    async with TestClient(TestServer(app)) as client:
        for _ in range(max(1, cases // AT_ONCE)):
            paths = [rng.choice(list(schemas)) for _ in range(AT_ONCE)]
            requests = [make_request(rng, path, schemas[path], bodies[path][1]) for path in paths]
            replies, _ = await asyncio.gather(
                asyncio.gather(*(send(client, request) for request in requests)),
                asyncio.wait_for(serve_one(client), ANSWER_S),
            )
            for request, (status, body) in zip(requests, replies, strict=True):
                assert status < 500 or status in (501, 503), (request, status, body)
                if status == 200 and body.startswith((b"{", b"[")):
                    json.loads(body, parse_constant=refuse_constant)
                statuses[status] += 1
        async with client.get("/health") as health:
            assert health.status == 200
    assert statuses[200] > 0
    assert statuses[400] > 0
    return statuses


async def test_the_engines_server(engine_app: web.Application, fuzz_cases: int) -> None:
    ask = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    answers: set[str] = set()

    async def serve_one(client: TestClient[Any, Any]) -> None:
        async with client.post("/generate", json=ask) as response:
            assert response.status == 200
            answers.add(str((await response.json())["output_ids"]))

    bodies = {
        "/generate": (GenerateBody, {"input_ids": [1, 2]}),
        "/inference/v1/generate": (TokensBody, {"token_ids": [1, 2], "model": "tiny"}),
        "/update_weights_from_disk": (UpdateWeightsBody, {}),
    }
    await attack(engine_app, bodies, serve_one, fuzz_cases // 5)
    assert len(answers) == 1, "the good request got the same tokens every time"


async def test_the_retrieval_server(retrieval_app: web.Application, fuzz_cases: int) -> None:
    async def serve_one(client: TestClient[Any, Any]) -> None:
        async with client.post("/retrieve", json={"queries": ["fox 7"], "topk": 1}) as response:
            assert response.status == 200
        async with client.post("/retrieve/page", json={"page": "7"}) as response:
            assert await response.json() == {"text": "fox 7"}

    bodies = {
        "/retrieve": (SearchRequest, {"queries": ["fox"]}),
        "/retrieve/page": (PageRequest, {"page": "fox 7"}),
    }
    await attack(retrieval_app, bodies, serve_one, fuzz_cases // 5)


async def test_the_scripted_experts(fuzz_cases: int) -> None:
    question = {"model": "sage", "messages": [{"role": "user", "content": "What is 3 plus 4?"}]}

    async def serve_one(client: TestClient[Any, Any]) -> None:
        async with client.post("/v1/chat/completions", json=question) as response:
            assert response.status == 200

    await attack(make_service(), {"/v1/chat/completions": (ChatBody, question)}, serve_one, fuzz_cases // 5)


async def test_the_gateways_token_wire(fuzz_cases: int) -> None:
    tokenizer = make_tokenizer("qwen3")
    policy = ScriptedPolicy(lambda prompt, sampling: [sum(prompt) % 50, 7])
    gateway = Gateway({"policy": policy}, tokenizer, SessionSettings(max_context=1000))
    for name in ("one", "two"):
        gateway.open_session(name)
    ask = {"token_ids": [1, 2, 3], "model": "policy", "sampling_params": {"max_tokens": 4}}

    async def serve_one(client: TestClient[Any, Any]) -> None:
        async with client.post("/s/two/inference/v1/generate", json=ask) as response:
            assert (response.status, (await response.json())["choices"][0]["token_ids"]) == (200, [6, 7])

    await attack(gateway.app, {"/s/one/inference/v1/generate": (TokensBody, ask)}, serve_one, fuzz_cases // 5)
    turns = (await gateway.finish_session("two")).turns
    assert {turn.prompt_ids for turn in turns} == {(1, 2, 3)}, "nothing of the other session"


async def test_slow_streams_of_a_gateway_outlive_clients_that_leave_or_do_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that reads has the answer, and it alone is trained; nothing of the others stays behind."""
    monkeypatch.setattr(gateway_server, "FIRST_PING_S", 0.01)
    monkeypatch.setattr(gateway_server, "PING_S", 0.001)
    tokenizer = make_tokenizer("qwen3")
    ids = tokenizer.encode("It is there.", add_special_tokens=False)
    policy = ScriptedPolicy(lambda prompt, sampling: ids, latency=1.0)
    gateway = Gateway({"policy": policy}, tokenizer, SessionSettings(max_context=1000))
    body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "hello"}], "stream": True}).encode()
    kinds = ("reads", "leaves", "waits") * AT_ONCE
    before = len(asyncio.all_tasks())
    async with serve_gateway(gateway) as url:
        port = int(url.rpartition(":")[2])

        async def ask(name: str, kind: str) -> tuple[bytes, asyncio.StreamWriter]:
            gateway.open_session(name)
            # The client that waits takes few bytes, so that the pings to it get stuck.
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            head = f"POST /s/{name}/v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + body)
            got = await reader.readuntil(b": keep-alive") if kind == "leaves" else b""
            if kind == "leaves":
                writer.transport.abort()
            return got if kind != "reads" else await reader.read(-1), writer

        async with asyncio.timeout(ANSWER_S):
            asked = await asyncio.gather(*(ask(f"s{i}", kind) for i, kind in enumerate(kinds)))
        for i, (kind, (got, _)) in enumerate(zip(kinds, asked, strict=True)):
            finished = await gateway.finish_session(f"s{i}")
            trained = [turn.trained for turn in finished.turns]
            if kind == "reads":
                assert got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
                assert trained == [True]
            elif kind == "leaves":
                assert (trained, finished.counters) == ([], {"unanswered": 1})
        for _, writer in asked:
            writer.transport.abort()
    assert len(asyncio.all_tasks()) == before
