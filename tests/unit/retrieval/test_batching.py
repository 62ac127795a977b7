"""Requests that wait together are answered together, each with its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from core.retrieval.batching import Batcher, OverloadError
from tests.kit import until


class Gate:
    """A search that holds until it is opened, and says what it was asked."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.opened = threading.Event()

    def __call__(self, queries: Sequence[str], topks: Sequence[int]) -> list[str]:
        self.batches.append(list(queries))
        assert self.opened.wait(30)
        if "poison" in queries:
            raise RuntimeError("poisoned")
        return [f"{query}@{k}" for query, k in zip(queries, topks, strict=True)]


async def test_what_arrives_during_a_batch_makes_the_next_one():
    gate = Gate()
    async with Batcher(gate, max_batch=4) as batcher:
        first = asyncio.create_task(batcher.search(["a"], 1))
        await until(lambda: gate.batches)
        later = [asyncio.create_task(batcher.search(list(queries), 2)) for queries in ("bc", "d", "efghi", "j")]
        await until(lambda: batcher.pending == 9)  # the event loop is free while the search holds
        gate.opened.set()
        assert await first == ["a@1"]
        assert await asyncio.gather(*later) == [
            ["b@2", "c@2"], ["d@2"], ["e@2", "f@2", "g@2", "h@2", "i@2"], ["j@2"],
        ]  # fmt: skip
    assert gate.batches == [["a"], ["b", "c", "d"], ["e", "f", "g", "h", "i"], ["j"]]


async def test_too_much_waiting_is_refused_and_then_taken_again():
    gate = Gate()
    async with Batcher(gate, max_pending=2) as batcher:
        running = asyncio.create_task(batcher.search(["a"], 1))
        await until(lambda: gate.batches)
        waiting = asyncio.create_task(batcher.search(["b", "c"], 1))
        await until(lambda: batcher.pending == 2)
        with pytest.raises(OverloadError):
            await batcher.search(["d"], 1)
        gate.opened.set()
        await asyncio.gather(running, waiting)
        assert await batcher.search(["d"], 1) == ["d@1"]


async def test_a_client_that_left_is_not_searched_for():
    gate = Gate()
    async with Batcher(gate) as batcher:
        running = asyncio.create_task(batcher.search(["a"], 1))
        await until(lambda: gate.batches)
        gone, stays = (asyncio.create_task(batcher.search([query], 1)) for query in ("gone", "stays"))
        await until(lambda: batcher.pending == 2)
        gone.cancel()
        await asyncio.wait([gone])
        gate.opened.set()
        assert await stays == ["stays@1"]
        await running
    assert gate.batches == [["a"], ["stays"]]


async def test_a_search_that_fails_fails_its_batch_and_no_other():
    gate = Gate()
    gate.opened.set()
    async with Batcher(gate) as batcher:
        with pytest.raises(RuntimeError, match="poisoned"):
            await batcher.search(["poison"], 1)
        assert await batcher.search(["a"], 1) == ["a@1"]
