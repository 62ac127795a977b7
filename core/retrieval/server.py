"""Serves POST /retrieve in Search-R1's format, POST /retrieve/page, and GET /health.

Request: {"queries": [text], "topk": k or null, "return_scores": bool}. Reply: {"result": [[hit]]}, a hit being
{"document": {"id", "contents"}, "score"}, or the document alone without scores.

POST /retrieve/page takes {"page": title or id}. Its reply is {"text": the page}, or {"text": null} where there is none.
A page is all passages with one title, but at most 16,384: the first line of each, without quotes around it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from core.retrieval.batching import Batcher, OverloadError
from core.retrieval.client import MAX_QUERY_CHARS
from core.retrieval.corpus import Corpus
from core.retrieval.index import Retriever, ScoredPassage
from core.serving import Handler, describe_invalid, make_app

MAX_PASSAGES = 16_384
"""Bounds the passages of a page: of more, which may share a title such as `Untitled`, only the first are read."""


class Pages:
    """Gives the text of pages, to one thread.

    The first call reads the whole corpus; 16 bytes of each passage stay in memory.
    """

    def __init__(self, corpus: Corpus):
        self._corpus = corpus

    def find(self, name: str) -> str | None:
        """Return the page with this title, or else that of the passage with this id; None if there is neither.

        It is the text of its passages in the order of the corpus, without their titles, a line each.
        """
        titles, ids = self._hashes  # of 64 bits, so two titles are taken for one with a chance of 1 in 10^12
        rows = np.flatnonzero(titles == hash(_read_title(name)))
        if not rows.size and (named := np.flatnonzero(ids == hash(name.strip()))).size:
            rows = np.flatnonzero(titles == titles[named[0]])
        parts = [self._corpus[row].contents.partition("\n") for row in rows[:MAX_PASSAGES].tolist()]
        return "\n".join(text if end else title for title, end, text in parts) if parts else None

    @cached_property
    def _hashes(self) -> npt.NDArray[np.int64]:
        """The hashes of titles and ids, int64 [2, passages]. A passage without a title is a page of its own."""
        passages = map(self._corpus.__getitem__, range(len(self._corpus)))
        hashes = (hash(key) for p in passages for key in (_read_title(p.contents) or (p.id,), str(p.id)))
        return np.fromiter(hashes, np.int64, 2 * len(self._corpus)).reshape(-1, 2).T.copy()


def _read_title(text: str) -> str:
    return text.partition("\n")[0].strip().strip(' \t"')


DEFAULT_TOPK, MAX_TOPK = 3, 1000
MAX_QUERIES = 1024
MAX_HITS = 16_384
"""Bounds queries x topk of a request: a reply of that many passages has some 12 MB."""
_MAX_BODY_BYTES = 4 * MAX_QUERIES * MAX_QUERY_CHARS
_RETRY_AFTER_S = 1


TopK = Annotated[int, Field(ge=1, le=MAX_TOPK)]
Text = Annotated[str, StringConstraints(max_length=MAX_QUERY_CHARS)]


class SearchRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    queries: Annotated[list[Text], Field(min_length=1, max_length=MAX_QUERIES)]
    topk: TopK | None = None
    return_scores: bool = False


class PageRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    page: Text


class RetrievalServer:
    """Answers requests with a retriever."""

    def __init__(
        self,
        retriever: Retriever,
        batcher: Batcher[list[ScoredPassage]],
        *,
        api_key: str | None = None,
    ):
        self.retriever = retriever
        self.batcher = batcher
        find_page = Pages(retriever.corpus).find
        self.pages = Batcher[str | None](lambda names, _: [*map(find_page, names)])
        self._api_key = api_key
        self.counts = Counter({"answered": 0, "bad_request": 0, "overloaded": 0, "failed": 0})

    def make_app(self) -> web.Application:
        app = make_app(max_body_bytes=_MAX_BODY_BYTES, api_key=self._api_key, middlewares=[self._answer_errors])
        posts = [web.post("/retrieve", self.retrieve), web.post("/retrieve/page", self.read_page)]
        app.add_routes([*posts, web.get("/health", self.health)])
        app.cleanup_ctx.append(self._run_batcher)
        return app

    async def _run_batcher(self, _: web.Application) -> AsyncIterator[None]:
        async with self.batcher, self.pages:
            yield

    async def retrieve(self, request: web.Request) -> web.Response:
        body = SearchRequest.model_validate_json(await request.read())
        topk = body.topk or DEFAULT_TOPK
        if len(body.queries) * topk > MAX_HITS:
            message = f"topk: {len(body.queries)} queries x {topk} passages are more than {MAX_HITS}; ask for fewer"
            return self._make_error("bad_request", 400, message)
        found = await self.batcher.search(body.queries, topk)
        self.counts["answered"] += 1
        format_hit = _format_hit if body.return_scores else _format_passage
        return web.json_response({"result": [[format_hit(hit) for hit in hits] for hits in found]})

    async def read_page(self, request: web.Request) -> web.Response:
        body = PageRequest.model_validate_json(await request.read())
        (text,) = await self.pages.search([body.page], 1)
        self.counts["answered"] += 1
        return web.json_response({"text": text})

    async def health(self, _: web.Request) -> web.Response:
        about = {
            "status": "ok",
            "corpus": str(self.retriever.corpus.path),
            "rows": len(self.retriever.corpus),
            "encoder": self.retriever.encoder.name,
            "dimension": self.retriever.encoder.dimension,
            "index": type(self.retriever.index).__name__,
            "pending": self.batcher.pending,
            "batches": self.batcher.batches,
        }
        return web.json_response(about | self.counts)

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except ValidationError as error:
            return self._make_error("bad_request", 400, _describe(error))
        except OverloadError as error:
            reply = self._make_error("overloaded", 503, f"{error}; try again")
            reply.headers["Retry-After"] = str(_RETRY_AFTER_S)
            return reply
        except web.HTTPException:
            raise
        except Exception as error:
            return self._make_error("failed", 500, f"the request failed: {error!r}")

    def _make_error(self, count: str, status: int, message: str) -> web.Response:
        self.counts[count] += 1
        return web.json_response({"error": {"message": message}}, status=status)


def _format_passage(hit: ScoredPassage) -> dict[str, Any]:
    return {"id": hit.passage.id, "contents": hit.passage.contents}


def _format_hit(hit: ScoredPassage) -> dict[str, Any]:
    return {"document": _format_passage(hit), "score": hit.score}


def _describe(error: ValidationError) -> str:
    """Describe the first error: field, what is wrong, and what is expected."""
    expected = '{"queries": [text, ...], "topk": number or null, "return_scores": true or false}'
    return f'{describe_invalid(error)}; expected {expected}, or for a page {{"page": title or id}}'
