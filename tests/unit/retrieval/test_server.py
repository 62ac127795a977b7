"""The wire, pages, what is refused and how, and the counts of /health."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from core.retrieval.__main__ import make_parser
from core.retrieval.batching import Batcher
from core.retrieval.corpus import Corpus
from core.retrieval.encoders import HashingEncoder
from core.retrieval.server import RetrievalServer
from tests.kit import make_retriever
from tests.unit.retrieval.conftest import question


def client(corpus: Corpus, search: Any = None, **limits: Any) -> TestClient:
    retriever = make_retriever(corpus, HashingEncoder(512))
    return TestClient(TestServer(RetrievalServer(retriever, Batcher(search or retriever.search, **limits)).make_app()))


async def test_search_r1(corpus: Corpus):
    async with client(corpus) as http:
        queries = [question(5), "", question(6)]
        reply = await http.post("/retrieve", json={"queries": queries, "topk": 2, "return_scores": True})
        found = (await reply.json())["result"]
        assert [len(hits) for hits in found] == [2, 0, 2]
        document = {"id": "p5", "contents": corpus[5].contents}
        assert found[0][0]["document"] == document
        assert found[0][0]["score"] > found[0][1]["score"]

        plain = await http.post("/retrieve", json={"queries": [question(5)], "topk": None})
        (hits,) = (await plain.json())["result"]
        assert hits[0] == document
        assert len(hits) == 3


async def test_a_page_is_served_by_its_title_or_an_id_and_null_where_there_is_none(corpus: Corpus):
    async with client(corpus) as http:
        replies = [await http.post("/retrieve/page", json={"page": name}) for name in ("Title 5", "p5", "nowhere", "")]
        assert [reply.status for reply in replies] == [200] * 4
        text = corpus[5].contents.partition("\n")[2]
        assert [await reply.json() for reply in replies] == [{"text": text}, {"text": text}, *[{"text": None}] * 2]
        asked = [http.post("/retrieve/page", json={"page": f"p{row % 200}"}) for row in range(100)]
        texts = [(await reply.json())["text"] for reply in await asyncio.gather(*asked)]
        assert texts == [corpus[row].contents.partition("\n")[2] for row in range(100)]
        assert (await (await http.get("/health")).json())["answered"] == 104


async def test_a_page_that_cannot_be_read_is_500_and_counted(tmp_path: Path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "1", "contents": "Oak\\nA tree."}\n')
    corpus = Corpus(path)
    async with client(corpus) as http:
        with path.open("r+") as file:  # as when somebody writes over the file of a running service
            file.write("broken")
        reply = await http.post("/retrieve/page", json={"page": "Oak"})
        assert reply.status == 500
        assert "corpus.jsonl, line 1" in (await reply.json())["error"]["message"]
        found = await http.post("/retrieve", json={"queries": [""]})
        assert found.status == 200, "searches go on"
        assert (await (await http.get("/health")).json())["failed"] == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{", ["body", "JSON"]),
        ("{}", ["queries", "required"]),
        ('{"queries": []}', ["queries", "at least 1"]),
        ('{"queries": ["fox", 3]}', ["queries.1", "string"]),
        ('{"queries": ["\\ud800"]}', ["JSON"]),
        ('{"queries": ["fox"], "topk": 0}', ["topk", "greater than or equal to 1"]),
        ('{"queries": ["fox"], "topk": 1001}', ["topk", "less than or equal to 1000"]),
        ('{"queries": ["fox"], "eid": 3}', ["eid", "not implemented"]),
        (json.dumps({"queries": ["fox"] * 1025}), ["queries", "at most 1024"]),
        (json.dumps({"queries": ["fox", "x" * 16385]}), ["queries.1", "at most 16384"]),
        ("[" * 100_000, ["body", "recursion"]),
        ('{"page": 5}', ["page", "string"]),
        ('{"page": "p5", "goal": "x"}', ["goal", "not implemented"]),
        (json.dumps({"page": "x" * 16385}), ["page", "at most 16384"]),
    ],
)
async def test_bad_requests_name_the_field_and_what_is_expected(corpus: Corpus, body: str, words: list[str]):
    async with client(corpus) as http:
        path = "/retrieve/page" if '"page"' in body else "/retrieve"
        reply = await http.post(path, data=body, headers={"Content-Type": "application/json"})
        message = (await reply.json())["error"]["message"]
        assert reply.status == 400
        for word in [*words, '"topk": number or null', 'for a page {"page": title or id}']:
            assert word in message
        health = await (await http.get("/health")).json()
    assert (health["bad_request"], health["answered"]) == (1, 0)


async def test_a_request_for_more_passages_than_a_reply_may_hold_is_refused_before_the_search(corpus: Corpus):
    async with client(corpus, search=lambda queries, topks: pytest.fail("searched")) as http:
        reply = await http.post("/retrieve", json={"queries": ["fox"] * 1024, "topk": 17})
        assert reply.status == 400
        assert "1024 queries x 17 passages are more than 16384" in (await reply.json())["error"]["message"]


async def test_overload_is_503_with_a_time_to_come_back(corpus: Corpus):
    opened, started = threading.Event(), threading.Event()

    def search(queries: Sequence[str], topks: Sequence[int]) -> list[Any]:
        started.set()
        assert opened.wait(30)
        return [[] for _ in queries]

    async with client(corpus, search=search, max_pending=1) as http:
        first = asyncio.create_task(http.post("/retrieve", json={"queries": ["a"]}))
        await asyncio.to_thread(started.wait, 30)
        waits = asyncio.create_task(http.post("/retrieve", json={"queries": ["b"]}))
        while (await (await http.get("/health")).json())["pending"] == 0:
            await asyncio.sleep(0.01)
        refused = await http.post("/retrieve", json={"queries": ["c"]})
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        opened.set()
        assert [(await first).status, (await waits).status] == [200, 200]
        health = await (await http.get("/health")).json()
    assert (health["overloaded"], health["answered"]) == (1, 2)


def test_set_may_be_given_once_or_again() -> None:
    for given in (["--set", "lists=4", "probes=2"], ["--set", "lists=4", "--set", "probes=2"]):
        assert make_parser().parse_args(["--corpus", "corpus.jsonl", *given]).set == ["lists=4", "probes=2"]
