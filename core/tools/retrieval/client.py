"""The client of Search-R1's wire: waits out a service that is restarted, and checks what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveFloat, ValidationError

_TRANSIENT = frozenset({408, 429})
_ANSWER_CHARS = 500


class RetrievalError(RuntimeError):
    """No result could be had; the message names the service and the reason."""


class Document(BaseModel):
    id: str | int | None = None
    contents: str


class Hit(BaseModel):
    document: Document
    score: float


class _Reply(BaseModel):
    result: list[list[Hit]]


class RetrievalClient(BaseModel):
    """`url` is that of /retrieve. A lost connection, a reply cut short, 408, 429 and 5xx are tried again.

    The pause doubles from `backoff_s` up to `max_backoff_s`: the defaults span 40 seconds.
    """

    model_config = ConfigDict(frozen=True)

    url: str
    max_retries: NonNegativeInt = 12
    backoff_s: PositiveFloat = 0.25
    max_backoff_s: PositiveFloat = 5.0
    attempt_s: PositiveFloat = 30.0
    """Of one attempt."""

    async def search(self, queries: Sequence[str], topk: int | None = None) -> list[list[Hit]]:
        """The hits of each query, best first.

        Raises:
            RetrievalError: refused (4xx), no reply within the retries, or a reply of another form.
        """
        request = {"queries": list(queries), "topk": topk, "return_scores": True}
        timeout = aiohttp.ClientTimeout(total=self.attempt_s)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for attempt in range(self.max_retries + 1):
                if attempt:
                    await asyncio.sleep(min(self.backoff_s * 2 ** (attempt - 1), self.max_backoff_s))
                try:
                    async with session.post(self.url, json=request) as response:
                        body = await response.read()
                except aiohttp.InvalidURL as error:
                    raise RetrievalError(f"{self.url}: not a URL; give that of /retrieve") from error
                except (aiohttp.ClientError, TimeoutError) as error:
                    problem = repr(error)
                    continue
                if response.status == 200:
                    return self._hits(body, len(queries))
                problem = f"HTTP {response.status} {body[:_ANSWER_CHARS].decode(errors='replace')}"
                if response.status < 500 and response.status not in _TRANSIENT:
                    raise RetrievalError(f"{self.url}: {problem}")
        raise RetrievalError(f"{self.url}: {problem}, at the last of {self.max_retries + 1} attempts")

    def _hits(self, body: bytes, count: int) -> list[list[Hit]]:
        try:
            found = _Reply.model_validate_json(body).result
        except ValidationError as error:
            raise RetrievalError(f"{self.url}: a reply of another form: {error}") from error
        if len(found) != count:
            raise RetrievalError(f"{self.url}: {len(found)} lists of hits for {count} queries")
        return found
