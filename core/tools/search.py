"""The search tool: passages from a retrieval service that speaks Search-R1's protocol (`POST URL`).

Request: {"queries": [...], "topk": k, "return_scores": true}. Reply: {"result": [[{"document": {"contents": text},
"score": s}]]}, where the first line of a text is its title.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from core.tools.base import Query, Tool, ToolContext, ToolResult


class Search(Tool):
    url: str
    """Of the service's /retrieve, such as http://HOST:PORT/retrieve."""
    name: str = "search"
    description: str = "Finds passages of a text collection that are nearest in meaning to a query."
    limits: str = "Returns passages, not answers; knows only its collection; one query at a time."
    best_practice: str = "Ask for one fact at a time, with full names."
    topk: PositiveInt = 3
    max_retries: NonNegativeInt = 2
    backoff_s: PositiveFloat = 0.5
    timeout_s: PositiveFloat = 30.0
    """Of a call, retries included."""

    async def call(self, arguments: Query, context: ToolContext) -> ToolResult:
        request = {"queries": [arguments.query], "topk": self.topk, "return_scores": True}
        try:
            passages = _passages(await self._post(request))
        except (aiohttp.ClientError, ValueError) as error:
            return ToolResult("error", "The search service gave no result.", error=f"{self.url}: {error!r}")
        return ToolResult("ok", "\n\n".join(passages) or "Nothing was found.")

    async def _post(self, request: dict[str, Any]) -> Any:
        """The service's reply; a lost connection and a 5xx are tried again."""
        async with aiohttp.ClientSession() as session:
            for attempt in range(self.max_retries + 1):
                if attempt:
                    await asyncio.sleep(self.backoff_s * 2 ** (attempt - 1))
                try:
                    async with session.post(self.url, json=request) as response:
                        response.raise_for_status()
                        return await response.json(content_type=None)
                except aiohttp.ClientResponseError as error:
                    if error.status < 500 or attempt == self.max_retries:
                        raise
                except aiohttp.ClientConnectionError:
                    if attempt == self.max_retries:
                        raise
        raise AssertionError("unreachable")


def _passages(reply: Any) -> list[str]:
    """One text for each hit: its number, its title and what it says. Raises ValueError on another reply."""
    try:
        contents = [hit["document"]["contents"] for hit in reply["result"][0]]
        parts = [text.partition("\n") for text in contents]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"the reply lacks a field: {error!r}") from error
    return [f"[{number}] {title.strip()}\n{text.strip()}" for number, (title, _, text) in enumerate(parts, 1)]
