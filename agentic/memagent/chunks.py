"""Splits a document into chunks of token ids, anywhere or only between sentences or documents."""

from __future__ import annotations

import re
from typing import Literal

from core.text.tokenizer import Ids, Tokenizer, encode_text, encode_texts

Align = Literal["none", "sentence", "document"]

_UNIT_STARTS = {"sentence": re.compile(r"(?<=[.!?])(?=\s)"), "document": re.compile(r"(?<=\n\n)(?=Document \d+:)")}


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
