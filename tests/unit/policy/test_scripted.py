"""A stop text is found at the token that completes it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from core.policy.base import completes_a_stop

ALPHABET = "ab>/é"


def decode_bytes(token_ids: Sequence[int], vocabulary: Sequence[bytes]) -> str:
    """Decode like byte-level BPE: a character may be spread over several tokens."""
    return b"".join(vocabulary[i] for i in token_ids).decode(errors="replace")


@given(
    text=st.text(ALPHABET, max_size=12),
    stops=st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.sets(st.integers(1, 23)),
)
def test_it_is_seen_at_its_last_token_and_not_before(text: str, stops: list[str], cuts: set[int]) -> None:
    data = text.encode()
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    vocabulary = [data[a:b] for a, b in pairwise(places) if a < b]

    def decode(token_ids: Sequence[int]) -> str:
        return decode_bytes(token_ids, vocabulary)

    for end in range(1, len(vocabulary) + 1):
        said = b"".join(vocabulary[:end])
        expected = any(stop.encode() in said for stop in stops)
        assert completes_a_stop(range(end), stops, decode) == expected
        if expected:
            break


def test_what_stood_there_before_is_not_read_again() -> None:
    asked: list[int] = []

    def decode(token_ids: Sequence[int]) -> str:
        asked.append(len(token_ids))
        return "x" * len(token_ids)

    assert not completes_a_stop(range(10_000), ["</s>"], decode)
    assert asked == [5]


def test_a_decoder_that_drops_the_first_space_hides_no_stop_text() -> None:
    decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    pieces = ["\u2581a", ".", "\u2581", "E", "N", "D"]  # of SentencePiece
    seen = [completes_a_stop(pieces[:end], [" END"], decoder.decode) for end in range(1, 7)]
    assert seen == [False] * 5 + [True]
