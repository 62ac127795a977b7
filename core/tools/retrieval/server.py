"""The service: POST /retrieve on Search-R1's wire or ToolOrchestra's, GET /health.

Request: {"queries": [text], "topk": k or null, "return_scores": bool}. Search-R1's reply: {"result": [[hit]]}, a hit
being {"document": {"id", "contents"}, "score"}, or the document alone without scores. ToolOrchestra's reply is the bare
list [[hit]], always with scores; its requests also carry `eid` and `new_cache_dir`, which have no effect: they choose
documents of one example, and search the web, in a service that is not reproduced here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from core.tools.retrieval.batching import Batcher, Overloaded
from core.tools.retrieval.retriever import Hit, Retriever

Wire = Literal["search-r1", "toolorchestra"]

MAX_TOPK = 1000
MAX_QUERIES = 1024
MAX_QUERY_CHARS = 16_384
_MAX_BODY_BYTES = 4 * MAX_QUERIES * MAX_QUERY_CHARS
_RETRY_AFTER_S = 1


TopK = Annotated[int, Field(ge=1, le=MAX_TOPK)]


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    queries: Annotated[
        list[Annotated[str, StringConstraints(max_length=MAX_QUERY_CHARS)]],
        Field(min_length=1, max_length=MAX_QUERIES),
    ]
    topk: TopK | None = None
    return_scores: bool = False


class ToolOrchestraRequest(Request):
    eid: Any = None
    new_cache_dir: Any = None


class Server:
    """`topk` is taken where a request names none."""

    def __init__(self, retriever: Retriever, batcher: Batcher[list[Hit]], *, topk: int = 3, wire: Wire = "search-r1"):
        self.retriever, self.batcher, self.topk, self.wire = retriever, batcher, topk, wire
        self.counts = Counter({"answered": 0, "bad_request": 0, "overloaded": 0, "failed": 0})

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._errors_as_json], client_max_size=_MAX_BODY_BYTES)
        app.add_routes([web.post("/retrieve", self.retrieve), web.get("/health", self.health)])
        app.cleanup_ctx.append(self._batching)
        return app

    async def _batching(self, _: web.Application) -> AsyncIterator[None]:
        async with self.batcher:
            yield

    async def retrieve(self, request: web.Request) -> web.Response:
        model = ToolOrchestraRequest if self.wire == "toolorchestra" else Request
        body = model.model_validate_json(await request.read())
        found = await self.batcher.search(body.queries, body.topk or self.topk)
        self.counts["answered"] += 1
        if self.wire == "toolorchestra":
            return web.json_response([[_scored(hit) for hit in hits] for hits in found])
        shown = _scored if body.return_scores else _document
        return web.json_response({"result": [[shown(hit) for hit in hits] for hits in found]})

    async def health(self, _: web.Request) -> web.Response:
        about = {
            "status": "ok",
            "corpus": str(self.retriever.corpus.path),
            "rows": len(self.retriever.corpus),
            "encoder": self.retriever.encoder.name,
            "dimension": self.retriever.encoder.dimension,
            "index": type(self.retriever.index).__name__,
            "wire": self.wire,
            "pending": self.batcher.pending,
            "batches": self.batcher.batches,
        }
        return web.json_response(about | self.counts)

    @web.middleware
    async def _errors_as_json(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except ValidationError as error:
            return self._error("bad_request", 400, _describe(error))
        except web.HTTPRequestEntityTooLarge:
            return self._error("bad_request", 413, f"body: more than {_MAX_BODY_BYTES} bytes; send fewer queries")
        except Overloaded as error:
            reply = self._error("overloaded", 503, f"{error}; try again, or start with a larger --max-pending")
            reply.headers["Retry-After"] = str(_RETRY_AFTER_S)
            return reply
        except web.HTTPException:
            raise
        except Exception as error:
            return self._error("failed", 500, f"the search failed: {error!r}")

    def _error(self, count: str, status: int, message: str) -> web.Response:
        self.counts[count] += 1
        return web.json_response({"error": {"message": message}}, status=status)


def _document(hit: Hit) -> dict[str, Any]:
    return {"id": hit.passage.id, "contents": hit.passage.contents}


def _scored(hit: Hit) -> dict[str, Any]:
    return {"document": _document(hit), "score": hit.score}


def _describe(error: ValidationError) -> str:
    """The first error, as `field: what is wrong, and what is expected`."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(map(str, first["loc"])) or "body"
    expected = '{"queries": [text, ...], "topk": number or null, "return_scores": true or false}'
    return f"{field}: {first['msg']}; expected {expected}"
