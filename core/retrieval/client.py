"""Asks a retrieval service in Search-R1's format, waits while it is restarted, and checks its replies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import aiohttp
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveFloat, ValidationError

_TRANSIENT = frozenset({408, 429})
_ANSWER_CHARS = 500


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


class RetrievalClient(BaseModel):
    """Sends queries to `url`, the URL of /retrieve.

    It tries again after a lost connection, an incomplete reply, 408, 429 and 5xx. The pause doubles from
    `backoff_s` up to `max_backoff_s`: the defaults span 40 seconds.
    """

    model_config = ConfigDict(frozen=True)

    url: str
    max_retries: NonNegativeInt = 12
    backoff_s: PositiveFloat = 0.25
    max_backoff_s: PositiveFloat = 5.0
    attempt_s: PositiveFloat = 30.0
    """Limits the seconds of one attempt."""
    api_key_file: str | None = None
    """Names the file that holds the key of the service."""

    async def search(self, queries: Sequence[str], topk: int | None = None) -> list[list[Hit]]:
        """Return the hits of each query, best first.

        Raises:
            RetrievalError: the service refused (4xx), did not answer within the retries, or sent another form.
        """
        request = {"queries": list(queries), "topk": topk, "return_scores": True}
        timeout = aiohttp.ClientTimeout(total=self.attempt_s)
        async with aiohttp.ClientSession(timeout=timeout, headers=self._read_headers()) as session:
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
                    return self._read_hits(body, len(queries))
                problem = f"HTTP {response.status} {body[:_ANSWER_CHARS].decode(errors='replace')}"
                if response.status < 500 and response.status not in _TRANSIENT:
                    raise RetrievalError(f"{self.url}: {problem}")
        raise RetrievalError(f"{self.url}: {problem}, at the last of {self.max_retries + 1} attempts")

    def _read_headers(self) -> dict[str, str]:
        if self.api_key_file is None:
            return {}
        try:
            return {"Authorization": f"Bearer {Path(self.api_key_file).read_text().strip()}"}
        except OSError as error:
            raise RetrievalError(f"api_key_file: {error}; write the key into it") from error

    def _read_hits(self, body: bytes, count: int) -> list[list[Hit]]:
        try:
            found = _Reply.model_validate_json(body).result
        except ValidationError as error:
            raise RetrievalError(f"{self.url}: a reply of another form: {error}") from error
        if len(found) != count:
            raise RetrievalError(f"{self.url}: {len(found)} lists of hits for {count} queries")
        return found
