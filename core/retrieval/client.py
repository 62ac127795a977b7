"""Asks a retrieval service in Search-R1's format, waits while it is restarted, and checks its replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from core.http_client import HTTPClient
from core.types import ServiceError

MAX_QUERY_CHARS = 16_384
"""Bounds a query, and the name of a page: our service refuses longer ones."""


class RetrievalError(RuntimeError):
    """Reports that no result could be had; the message names the service and the reason."""


class Document(BaseModel):
    id: str | int | None = None
    contents: str


class Hit(BaseModel):
    document: Document
    score: float


class _Reply(BaseModel):
    result: list[list[Hit]]


class _PageReply(BaseModel):
    text: str | None


Reply = TypeVar("Reply", bound=BaseModel)


class RetrievalClient:
    """Sends queries to `url`, the URL of /retrieve, with the key in `api_key_file` if the service wants one.

    It tries again after a lost connection, an incomplete reply, 408, 429 and 5xx. The pause doubles from `backoff_s`
    up to five seconds: the defaults span some 40 seconds.
    """

    def __init__(self, url: str, *, max_retries: int = 12, backoff_s: float = 0.25, api_key_file: str | None = None):
        self.url = url
        self._make_client = partial(
            HTTPClient,
            url,
            attempt_s=30.0,
            max_retries=max_retries,
            backoff_s=backoff_s,
            max_backoff_s=5.0,
            api_key_file=api_key_file,
        )

    async def search(self, queries: Sequence[str], topk: int | None = None) -> list[list[Hit]]:
        """Return the hits of each query, best first.

        Raises:
            RetrievalError: the service refused (4xx), did not answer within the retries, or sent another form.
            ValueError: `queries` is one text.
        """
        if isinstance(queries, str):
            raise ValueError(f"queries: must be a list of texts, is {queries!r:.60}; write [query]")
        found = (await self._ask("", {"queries": list(queries), "topk": topk, "return_scores": True}, _Reply)).result
        if len(found) != len(queries):
            raise RetrievalError(f"{self.url}: {len(found)} lists of hits for {len(queries)} queries")
        return found

    async def read_page(self, name: str) -> str | None:
        """Return the text of the page with this title, or else of the passage with this id; None if there is neither.

        Raises:
            RetrievalError: as `search`; so a service without pages is told from one that has not this page.
        """
        return (await self._ask("/page", {"page": name}, _PageReply)).text

    async def _ask(self, path: str, request: Mapping[str, Any], form: type[Reply]) -> Reply:
        try:
            async with self._make_client() as client:
                body = await client.retry(lambda: client.post(path, request))
        except (ServiceError, ValueError) as error:
            raise RetrievalError(str(error)) from error
        try:
            return form.model_validate_json(body)
        except ValidationError as error:
            raise RetrievalError(f"{self.url}{path}: a reply of another form: {error}") from error
