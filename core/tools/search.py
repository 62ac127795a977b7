"""The search tool: it asks a retrieval service such as core.retrieval; a text's first line is its title."""

from __future__ import annotations

from typing import ClassVar

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from core.retrieval import MAX_QUERY_CHARS, RetrievalClient, RetrievalError
from core.tools.base import Arguments, Query, Tool, ToolContext, ToolResult


class Search(Tool):
    needs_service: ClassVar[bool] = True
    url: str
    """Holds the URL of the service, such as http://HOST:PORT/retrieve."""
    name: str = "search"
    description: str = "Finds passages of a text collection that are nearest in meaning to a query."
    limits: str = "Returns passages, not answers; knows only its collection; one query at a time."
    best_practice: str = "Ask for one fact at a time, with full names."
    topk: PositiveInt = 3
    max_retries: NonNegativeInt = 12
    backoff_s: PositiveFloat = 0.25
    timeout_s: PositiveFloat = 60.0
    """Limits the seconds of a call with its retries."""
    api_key_file: str | None = None
    """Names the file that holds the key of the service."""

    async def call(self, arguments: Query, context: ToolContext) -> ToolResult:
        if len(arguments.query) > MAX_QUERY_CHARS:
            return ToolResult("bad_arguments", f"A query has at most {MAX_QUERY_CHARS} characters.", error="too_long")
        options = self.model_dump(include={"url", "max_retries", "backoff_s", "api_key_file"})
        client = RetrievalClient(**options)
        try:
            (hits,) = await client.search([arguments.query.encode(errors="replace").decode()], self.topk)
        except RetrievalError as error:
            return ToolResult("error", "The search service gave no result.", error=str(error))
        parts = [hit.document.contents.partition("\n") for hit in hits]
        passages = [f"{title.strip()}\n{text.strip()}" for title, _, text in parts]
        shown = "\n\n".join(f"[{number}] {passage}" for number, passage in enumerate(passages, 1))
        return ToolResult("ok", shown or "Nothing was found.", parts=tuple(passages))


class WebQuery(Query):
    add_citations: bool = True
    """Accepts what released executors may add; passages have no citations to leave out."""


class WebSearch(Search):
    """Stands in for a web search: it takes the same arguments and asks the retrieval service."""

    arguments: ClassVar[type[Arguments]] = WebQuery
