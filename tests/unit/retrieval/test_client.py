"""What the client tries again, what it does not, and that nothing but its own error comes out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from core.retrieval.client import Hit, RetrievalClient, RetrievalError

GOOD = b'{"result": [[{"document": {"id": "1", "contents": "Oak\\nA tree."}, "score": 0.5}]]}'
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def connect(path: str, handler: Handler, **options: float) -> AsyncIterator[RetrievalClient]:
    application = web.Application()
    application.router.add_post(path, handler)
    async with TestServer(application) as server:
        settings = {"backoff_s": 0.001, "max_retries": 3} | options
        yield RetrievalClient(url=str(server.make_url("/retrieve")), **settings)


async def ask(handler: Handler, **options: float) -> list[list[Hit]]:
    async with connect("/retrieve", handler, **options) as client:
        return await client.search(["oak"], 1)


async def test_a_page_is_asked_for_by_name_and_a_passing_fault_is_tried_again():
    asked: list[dict[str, object]] = []

    async def read_page(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        return (
            web.Response(status=503)
            if len(asked) == 1
            else web.json_response({"text": [None, "A tree."][len(asked) % 2]})
        )

    async with connect("/retrieve/page", read_page) as client:
        assert [await client.read_page("Oak"), await client.read_page("Elm")] == [None, "A tree."]
    assert asked == [{"page": "Oak"}, {"page": "Oak"}, {"page": "Elm"}]


async def test_one_text_is_no_list_of_queries():
    with pytest.raises(ValueError, match=r"queries: must be a list of texts, is 'oak'; write \[query\]"):
        await RetrievalClient("http://127.0.0.1:1/retrieve").search("oak")


async def test_a_service_without_pages_is_told_from_one_that_has_not_this_page():
    async def refuse(request: web.Request) -> web.StreamResponse:
        raise AssertionError("not asked")

    async with connect("/retrieve", refuse) as client:
        with pytest.raises(RetrievalError, match="/retrieve/page: HTTP 404"):
            await client.read_page("Oak")


@pytest.mark.parametrize("fault", ["cut", "dropped", 408, 429, 500, 503])
async def test_passing_faults_are_tried_again(fault: str | int):
    asked: list[dict[str, object]] = []

    async def retrieve(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        if len(asked) == 3:
            return web.Response(body=GOOD)
        assert request.transport is not None
        if fault == "cut":
            reply = web.StreamResponse(headers={"Content-Length": str(len(GOOD))})
            await reply.prepare(request)
            await reply.write(GOOD[:20])
            request.transport.close()
            return reply
        if fault == "dropped":
            request.transport.close()
        return web.Response(status=fault if isinstance(fault, int) else 200)

    ((hit,),) = await ask(retrieve)
    assert (hit.document.contents, hit.score) == ("Oak\nA tree.", 0.5)
    assert asked == [{"queries": ["oak"], "topk": 1, "return_scores": True}] * 3


@pytest.mark.parametrize(
    ("status", "attempts", "says"),
    [(400, 1, "HTTP 400: topk: too large"), (503, 4, r"HTTP 503.*last of 4 attempts")],
)
async def test_a_refusal_is_not_tried_again_and_retries_are_bounded(status: int, attempts: int, says: str):
    asked: list[int] = []

    async def retrieve(request: web.Request) -> web.StreamResponse:
        asked.append(1)
        return web.Response(status=status, text="topk: too large")

    with pytest.raises(RetrievalError, match=says):
        await ask(retrieve)
    assert len(asked) == attempts


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *(("/retrieve", f'{{"result": {result}}}') for result in ("[]", "[[], []]", "[[3]]")),
        *(("/retrieve/page", body) for body in ('{"text": 3}', '{"page": null}')),
        *((path, body) for path in ("/retrieve", "/retrieve/page") for body in ("", "{}", "[]")),
    ],
)
async def test_a_reply_of_another_form_is_told(path: str, body: str):
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=body)

    async with connect(path, answer) as client:
        with pytest.raises(RetrievalError, match=f"{path}: "):
            await (client.search(["oak"], 1) if path == "/retrieve" else client.read_page("Oak"))


@pytest.mark.parametrize(("url", "said"), [("host/retrieve", "has no scheme"), ("http://host:port/x", "not a URL")])
async def test_what_is_no_url_is_not_tried_again(url: str, said: str):
    with pytest.raises(RetrievalError, match=said):
        await asyncio.wait_for(RetrievalClient(url=url, backoff_s=60.0).search(["oak"]), 10.0)
