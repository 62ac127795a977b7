from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web

from agentic.search_r1.rollout import SPEC, SearchR1
from agentic.search_r1.world import write_passages
from core.data.files import write_records
from tests.kit import serve_app, serve_corpus


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a retrieval service over the corpus of the preset `tiny`."""
    corpus = tmp_path_factory.mktemp("world") / "corpus.jsonl"
    write_records(corpus, write_passages())
    with serve_corpus(corpus) as url:
        yield url


@contextmanager
def serve_answer(path: str, status: int, body: str) -> Iterator[str]:
    """Serve one answer to every request at a path; give the URL."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    app = web.Application()
    app.add_routes([web.post(path, answer)])
    with serve_app(app) as url:
        yield url


def load(url: str, *overrides: str, preset: str = "tiny") -> Any:
    """Load the recipe of a preset with the URL of a service."""
    return SPEC.load(preset, [f"search_r1.url={url}/retrieve", "search_r1.addresses=null", *overrides])


@pytest.fixture
def method(service: str, tokenizer: Any) -> SearchR1:
    """The method as the preset `tiny` sets it up."""
    return SearchR1(load(service), tokenizer)
