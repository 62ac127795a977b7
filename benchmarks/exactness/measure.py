"""Compares the training rows of a rollout with the engine's log: which sampled tokens are trained, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Log = Iterable[tuple[Sequence[int], Sequence[int]]]
"""Holds the prompt and the reply of each call that the engine had."""
Row = tuple[Sequence[int], Sequence[int]]
"""Holds the tokens of a training row, and a mask that is 1 where a token is trained."""


@dataclass(frozen=True, slots=True)
class Exactness:
    """Counts tokens of rollouts. `trained`, `again` and `unseen` are together all tokens that the rows train.

    A token stands in a context: all tokens before it. A trained token is the engine's if the engine sampled that token
    in that context. It is trained `again` if it was sampled there fewer times than it is trained, and `unseen` if it
    was never sampled there.
    """

    sampled: int = 0
    trained: int = 0
    again: int = 0
    unseen: int = 0
    rollouts: int = 0
    rows: int = 0
    tokens: int = 0
    """Counts the tokens of all rows, which a trainer computes."""
    twice: int = 0
    """Counts those of `tokens` that stand in an earlier row in the same context."""

    def __add__(self, other: Exactness) -> Exactness:
        return Exactness(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


def measure(log: Log, rows: Iterable[Row]) -> Exactness:
    """Measure one rollout."""
    contexts: dict[tuple[int, int], int] = {}  # (a context, the next token) -> the context of both

    def follow(tokens: Sequence[int]) -> list[int]:
        """Return the context that ends with each token."""
        place, places = 0, []
        for token in tokens:
            place = contexts.setdefault((place, token), len(contexts) + 1)
            places.append(place)
        return places

    sampled = Counter(place for prompt, reply in log for place in follow([*prompt, *reply])[len(prompt) :])
    trained: Counter[int] = Counter()
    computed: set[int] = set()
    count = tokens = 0
    for row, mask in rows:
        places = follow(row)
        trained.update(place for place, wanted in zip(places, mask, strict=True) if wanted)
        computed.update(places)
        count, tokens = count + 1, tokens + len(places)
    unseen = sum(number for place, number in trained.items() if place not in sampled)
    exact = (trained & sampled).total()
    again = trained.total() - exact - unseen
    return Exactness(sampled.total(), exact, again, unseen, 1, count, tokens, tokens - len(computed))
