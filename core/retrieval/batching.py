"""Batches requests: one call in a thread answers all requests that wait at the same time.

Requests that arrive while a call runs wait and make the next batch. So batches grow with the load, and a lone request
does not wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


class OverloadError(Exception):
    """Reports that too many queries wait already; try again later."""


@dataclass(frozen=True, eq=False)
class _PendingSearch(Generic[T]):
    queries: Sequence[str]
    topk: int
    answer: asyncio.Future[list[T]]


class Batcher(Generic[T]):
    """Gathers requests into calls of `search(queries, topks)`, which returns one T for each query.

    Use it as an asynchronous context manager. A batch has at most `max_batch` queries, or one request that is larger.
    At most `max_pending` queries wait. `prepare` is called once in the thread that searches; it sets up what libraries
    keep for each thread.
    """

    def __init__(
        self,
        search: Callable[[Sequence[str], Sequence[int]], list[T]],
        *,
        max_batch: int = 64,
        max_pending: int = 4096,
        prepare: Callable[[], None] | None = None,
    ):
        self._search = search
        self._max_batch = max_batch
        self._max_pending = max_pending
        self._waiting: deque[_PendingSearch[T]] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "retrieval", initializer=prepare)
        self.batches = 0

    async def __aenter__(self) -> Batcher[T]:
        self._loop_task = asyncio.create_task(self._answer_batches())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop_task.cancel()
        for request in self._waiting:
            request.answer.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def pending(self) -> int:
        """Return the number of queries that wait, without those in the running batch."""
        return sum(len(request.queries) for request in self._waiting)

    async def search(self, queries: Sequence[str], topk: int) -> list[T]:
        """Return one T for each query.

        Raises:
            OverloadError: `max_pending` would be exceeded.
            Exception: whatever the search of its batch raised.
        """
        if self.pending + len(queries) > self._max_pending:
            raise OverloadError(f"{self.pending} queries wait, of at most {self._max_pending}")
        request = _PendingSearch[T](queries, topk, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._arrived.set()
        return await request.answer

    async def _answer_batches(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while batch := self._next_batch():
                await self._answer(batch)

    def _next_batch(self) -> list[_PendingSearch[T]]:
        """Take the oldest requests whose client still waits."""
        batch: list[_PendingSearch[T]] = []
        size = 0
        while self._waiting and (not batch or size + len(self._waiting[0].queries) <= self._max_batch):
            request = self._waiting.popleft()
            if not request.answer.done():
                batch.append(request)
                size += len(request.queries)
        return batch

    async def _answer(self, batch: list[_PendingSearch[T]]) -> None:
        queries = [query for request in batch for query in request.queries]
        topks = [request.topk for request in batch for _ in request.queries]
        self.batches += 1
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._thread, self._search, queries, topks)
        except Exception as error:
            for request in batch:
                if not request.answer.done():
                    request.answer.set_exception(error)
            return
        start = 0  # results[start:stop] belong to the request
        for request in batch:
            stop = start + len(request.queries)
            if not request.answer.done():
                request.answer.set_result(results[start:stop])
            start = stop
