"""Stop texts: where a completion ends by what its tokens say, whichever tokens those are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, special tokens included: `tokenizer.decode`."""


def completes_a_stop(token_ids: Sequence[int], stop: Sequence[str], decode: Decode) -> bool:
    """Whether the last of `token_ids` completes one of the texts `stop`, asked after every token.

    A token is a byte at least, so a text of n bytes lies within the last n tokens.
    """
    longest = max(len(text.encode()) for text in stop)
    said = decode(token_ids[-longest:])
    return any(text in said for text in stop)
