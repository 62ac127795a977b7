"""Splits a document into chunks of token ids, anywhere or only between sentences or documents, once for a group."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Hashable
from typing import Generic, Literal, TypeVar

from core.text.tokenizer import Ids, Tokenizer, encode_text, encode_texts

T = TypeVar("T")
Align = Literal["none", "sentence", "document"]

_UNIT_STARTS = {
    "sentence": re.compile(r"(?<=[.!?])(?=\s)|(?<=[。！？])(?![。！？」』”’）])|(?<=[。！？][」』”’）])(?![」』”’）])"),
    "document": re.compile(r"(?:(?<=\n\n)|(?<=\n\r\n))(?=Document \d+:)"),
}


def split_chunks(tokenizer: Tokenizer, text: str, chunk_tokens: int, align: Align) -> list[Ids]:
    """Return chunks of at most `chunk_tokens` ids that together hold all of `text`.

    An alignment keeps units (sentences or documents) whole. Only a unit that is longer than a chunk is cut.
    """
    if align == "none":
        return _cut(encode_text(tokenizer, text), chunk_tokens)
    chunks: list[Ids] = []
    current: list[int] = []
    for unit in encode_texts(tokenizer, [u for u in _UNIT_STARTS[align].split(text) if u]):
        if current and len(current) + len(unit) > chunk_tokens:
            chunks.append(tuple(current))
            current = []
        if len(unit) > chunk_tokens:
            *whole, rest = _cut(unit, chunk_tokens)
            chunks += whole
            current = list(rest)
        else:
            current += unit
    if current:
        chunks.append(tuple(current))
    return chunks


def _cut(ids: Ids, size: int) -> list[Ids]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]


class SharedResults(Generic[T]):
    """Keeps the last `kept` results; the rollouts of a group begin one after the other, so few are enough.

    Timing decides batch composition, and batching changes the last bits of log-probs. So a hit must not change timing:
    a quick result is computed on the spot and never waits, whether it is kept already or not.
    """

    def __init__(self, kept: int = 16):
        self._kept = kept
        self._results: dict[Hashable, T | asyncio.Task[T]] = {}

    async def find(self, key: Hashable, compute: Callable[[], T], *, slow: bool) -> T:
        """Return the result of `key`. One that is `slow` is computed in a thread, and other rollouts go on meanwhile.

        What `compute` raises is raised to everyone who waits for it.
        """
        if key not in self._results:
            if len(self._results) == self._kept:
                del self._results[next(iter(self._results))]  # the oldest; those who wait for it hold it themselves
            self._results[key] = asyncio.create_task(asyncio.to_thread(compute)) if slow else compute()
        result = self._results[key]
        # A rollout that is cancelled, at its deadline for one, must not cancel what the others wait for.
        return await asyncio.shield(result) if isinstance(result, asyncio.Task) else result
