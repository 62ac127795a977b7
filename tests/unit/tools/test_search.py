"""The search tool against a service of Search-R1's protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from core.tools.base import Query, ToolContext
from core.tools.search import Search

HITS = [
    {"document": {"id": "1", "contents": '"Oak"\nA tree.'}, "score": 0.9},
    {"document": {"id": "2", "contents": "Acorn\nIts fruit."}, "score": 0.8},
]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def search(handler: Handler, **options: Any) -> Any:
    application = web.Application()
    application.router.add_post("/retrieve", handler)
    async with TestServer(application) as server:
        tool = Search(url=str(server.make_url("/retrieve")), backoff_s=0.001, **options)
        return await tool.call(Query(query="fruit of the oak"), ToolContext())


async def test_passages_with_their_titles():
    asked = []

    async def retrieve(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response({"result": [HITS]})

    result = await search(retrieve, topk=2)
    assert (result.status, result.text) == ("ok", '[1] "Oak"\nA tree.\n\n[2] Acorn\nIts fruit.')
    assert asked == [{"queries": ["fruit of the oak"], "topk": 2, "return_scores": True}]


async def test_nothing_found():
    async def retrieve(request: web.Request) -> web.Response:
        return web.json_response({"result": [[]]})

    assert (await search(retrieve)).text == "Nothing was found."


async def test_a_search_that_fails_is_a_result_that_names_the_service():
    """test_client.py has what else may go wrong."""
    asked = []

    async def retrieve(request: web.Request) -> web.Response:
        asked.append(1)
        return web.Response(status=503)

    result = await search(retrieve, max_retries=2)
    assert (result.status, len(asked)) == ("error", 3)
    assert "/retrieve" in result.error
