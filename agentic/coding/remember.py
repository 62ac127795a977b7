"""Keeps the results of work that rollouts of one task would repeat."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

Value = TypeVar("Value")


class Remembered(Generic[Value]):
    """Holds the `size` values that were used last, by key."""

    def __init__(self, size: int):
        self.size = size
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[Value | None]:
        """Give the value, or None if there is none; then others who ask for the key wait until the block ends.

        Who has waited in vain, because nothing was put, gets None too, beside all others who have.
        """
        if not self.size:
            yield None
            return
        lock = self._locks.setdefault((key, asyncio.get_running_loop()), asyncio.Lock())
        first = not lock.locked()
        async with lock:
            if first and key not in self._values:
                yield None
                return
        if key in self._values:
            self._values.move_to_end(key)
        yield self._values.get(key)

    def put(self, key: Hashable, value: Value) -> None:
        self._values[key] = value
        while len(self._values) > self.size:
            self._values.popitem(last=False)
