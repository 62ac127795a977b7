"""Chunks lose nothing, add nothing, stay within their size, and keep units whole where they fit."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from agentic.memagent.chunks import split_chunks
from core.text.tokenizer import encode_text

PIECES = st.sampled_from([
    "The sky is blue.", "Here we go!", "Why?", " ", "\n", "\n\n", "Document 1:\n", "Document 22:\n", "acorn hat", "é漢",
    "1.5", "漢。字！」", "\r\n\r\nDocument 3:",
])  # fmt: skip
TEXTS = st.lists(PIECES, min_size=1, max_size=40).map(" ".join)
ALIGNS = st.sampled_from(["none", "sentence", "document"])


def joined(chunks):
    return tuple(i for chunk in chunks for i in chunk)


def units(text: str, align: str) -> list[str]:
    """The units, said another way: a sentence ends before white space, a document starts at its header."""
    if align == "none":
        return [text]
    ends = r"[.!?](?=\s)|。|！」" if align == "sentence" else r"\n\r?\n(?=Document \d+:)"
    cuts = [0, *(match.end() for match in re.finditer(ends, text)), len(text)]
    return [text[a:b] for a, b in pairwise(cuts) if a < b]


@given(TEXTS, st.integers(1, 60), ALIGNS)
def test_chunks_together_are_the_units_and_none_is_too_long(tokenizer, text, size, align):
    chunks = split_chunks(tokenizer, text, size, align)
    encoded = [encode_text(tokenizer, unit) for unit in units(text, align)]
    assert joined(chunks) == tuple(i for unit in encoded for i in unit)
    assert all(0 < len(chunk) <= size for chunk in chunks)
    assert tokenizer.decode(joined(chunks)) == text


@example("漢。字！」漢。", 10, "sentence")
@example("hat hat hat\r\n\r\nDocument 3: hat hat hat", 12, "document")
@given(TEXTS, st.integers(1, 60), ALIGNS)
def test_units_that_fit_are_never_cut(tokenizer, text, size, align):
    cuts, position = set(), 0
    for chunk in split_chunks(tokenizer, text, size, align):
        position += len(chunk)
        cuts.add(position)
    position = 0
    for unit in units(text, align):
        length = len(encode_text(tokenizer, unit))
        if length <= size and align != "none":
            assert not cuts & set(range(position + 1, position + length))
        position += length


def test_a_unit_that_is_too_long_is_cut_and_the_next_one_joins_its_rest(tokenizer):
    long, short = "acorn " * 10 + "hat.", " Why?"
    ids, after = encode_text(tokenizer, long), encode_text(tokenizer, short)
    size = len(ids) - 1
    assert split_chunks(tokenizer, long + short, size, "sentence") == [ids[:size], ids[size:] + after]
