"""What rollouts share is computed once, changes no timing where it is quick, and no member spoils it for the others."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agentic.memagent.chunks import SharedResults


async def test_members_wait_for_the_one_computation_also_when_the_first_is_cancelled() -> None:
    gate, computed, shared = threading.Event(), [], SharedResults[int]()

    def compute() -> int:
        assert gate.wait(30)
        computed.append(1)
        return 7

    first, second = (asyncio.create_task(shared.find("key", compute, slow=True)) for _ in range(2))
    await asyncio.sleep(0.01)  # the loop goes on while the thread waits
    first.cancel()
    await asyncio.sleep(0)
    assert not second.done()
    gate.set()
    assert await second == 7
    assert first.cancelled()
    assert computed == [1]


def test_what_is_quick_never_waits_whether_it_is_kept_or_not() -> None:
    """A run that resumes has kept nothing, and must put the same calls into the same batches."""
    shared, results = SharedResults[int](), iter([7, 8])
    for _ in range(2):
        with pytest.raises(StopIteration) as returned:
            shared.find("key", lambda: next(results), slow=False).send(None)
        assert returned.value.value == 7


@pytest.mark.parametrize("slow", [True, False])
async def test_what_cannot_be_computed_fails_every_member(slow: bool) -> None:
    shared = SharedResults[float]()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await shared.find("key", lambda: 1 / 0, slow=slow)
