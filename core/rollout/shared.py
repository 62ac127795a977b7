"""Computes once what several rollouts need, such as the chunks of the document that a group reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


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
