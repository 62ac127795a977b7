"""Asks a retrieval service in Search-R1's format, waits while it is restarted, and checks its replies."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveFloat, ValidationError

from core.http_client import HTTPClient, ServiceError


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
    `backoff_s` up to `max_backoff_s`: the defaults span half a minute.
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
        request: dict[str, object] = {"queries": list(queries), "topk": topk, "return_scores": True}
        try:
            async with HTTPClient(
                self.url,
                timeout_s=None,
                attempt_s=self.attempt_s,
                max_retries=self.max_retries,
                backoff_s=self.backoff_s,
                max_backoff_s=self.max_backoff_s,
                api_key_file=self.api_key_file,
            ) as client:
                body = await client.retry(lambda: client.post("", request))
        except (ServiceError, ValueError) as error:
            raise RetrievalError(str(error)) from error
        return self._read_hits(body, len(queries))

    def _read_hits(self, body: bytes, count: int) -> list[list[Hit]]:
        try:
            found = _Reply.model_validate_json(body).result
        except ValidationError as error:
            raise RetrievalError(f"{self.url}: a reply of another form: {error}") from error
        if len(found) != count:
            raise RetrievalError(f"{self.url}: {len(found)} lists of hits for {count} queries")
        return found
