"""Compares the training rows of a rollout with the engine's log: which sampled tokens are trained, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

Log = Iterable[tuple[Sequence[int], Sequence[int]]]
"""Holds the prompt and the reply of each call that the engine had."""
Row = tuple[Sequence[int], Sequence[int]]
"""Holds the tokens of a training row, and a mask that is 1 where a token is trained."""


def measure(log: Log, rows: Iterable[Row]) -> dict[str, int]:
    """Return the counts of one rollout.

    A token stands in a context: all tokens before it. A trained token is the engine's if the engine sampled that token
    in that context. It is trained `again` if it was sampled there fewer times than it is trained, and `unseen` if it
    was never sampled there. `trained`, `again` and `unseen` are together all tokens that the rows train. A trainer
    computes all `row tokens`; those that stand in an earlier row in the same context it computes `twice`.
    """
    contexts: dict[tuple[int, int], int] = {}  # (a context, the next token) -> the context of both

    def follow(tokens: Sequence[int]) -> list[int]:
        """Return the context that ends with each token."""
        place, places = 0, []
        for token in tokens:
            place = contexts.setdefault((place, token), len(contexts) + 1)
            places.append(place)
        return places

    sampled = Counter(place for prompt, reply in log for place in follow([*prompt, *reply])[len(prompt) :])
    followed = [(follow(tokens), mask) for tokens, mask in rows]
    trained = Counter(place for places, mask in followed for place, m in zip(places, mask, strict=True) if m)
    computed = [place for places, _ in followed for place in places]
    exact = (trained & sampled).total()
    unseen = sum(number for place, number in trained.items() if place not in sampled)
    return {
        "rollouts": 1,
        "sampled": sampled.total(),
        "trained": exact,
        "again": trained.total() - exact - unseen,
        "unseen": unseen,
        "rows": len(followed),
        "row tokens": len(computed),
        "twice": len(computed) - len(set(computed)),
    }
