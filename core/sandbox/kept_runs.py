"""Keeps what programs gave, so that equal ones run once. It is for programs without randomness."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class KeptRuns(Generic[Result]):
    """Holds the `size` runs that were asked for last, those that are under way among them; with size 0 none.

    A run that says nothing about its program, such as a timeout, is not `conclusive`: it may succeed another time.
    """

    def __init__(self, size: int, conclusive: Callable[[Result], bool]):
        self._size, self._conclusive = size, conclusive
        self._runs: dict[Hashable, asyncio.Task[Result]] = {}

    async def find(self, key: Hashable, run: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return what the kept run of this key gave or will give; without one, that of `run`. It raises as the run."""
        if not self._size:
            return await run()
        task = self._runs.pop(key, None)
        if task is None:
            task = asyncio.create_task(run())
            task.add_done_callback(partial(self._forget_inconclusive, key))
        self._runs[key] = task
        for oldest in list(self._runs)[: len(self._runs) - self._size]:
            del self._runs[oldest]
        return await asyncio.shield(task)  # a rollout that is cancelled must not cancel what others wait for

    def close(self) -> None:
        """End the runs that are under way, and forget all."""
        for task in self._runs.values():
            task.cancel()
        self._runs.clear()

    def _forget_inconclusive(self, key: Hashable, task: asyncio.Task[Result]) -> None:
        conclusive = not task.cancelled() and not task.exception() and self._conclusive(task.result())
        if not conclusive and self._runs.get(key) is task:
            del self._runs[key]
