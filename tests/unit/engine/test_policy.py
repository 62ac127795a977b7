"""EmbeddedPolicy with the engine in a worker thread: no step is ever interrupted, and every caller gets his answer."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from core.engine.engine import Engine
from core.engine.policy import EmbeddedPolicy
from core.policy.base import PolicyError
from core.types import Sampling
from tests import kit
from tests.unit.conftest import complete, count_idle

CALLS = 40


class WatchedEngine(Engine):
    """Notes every time something touches it while a step runs in the other thread."""

    def watch(self) -> None:
        self.in_step = threading.Event()
        self.intrusions: list[str] = []
        self.step_threads: set[int] = set()
        self.delay = 0.0

    def step(self) -> list[Any]:
        self.step_threads.add(threading.get_ident())
        self.in_step.set()
        time.sleep(self.delay)
        try:
            return super().step()
        finally:
            self.in_step.clear()

    def submit(self, *args: Any, **options: Any) -> Any:
        self.note("submit")
        return super().submit(*args, **options)

    def abort(self, request_id: str) -> Any:
        self.note("abort")
        return super().abort(request_id)

    def note(self, name: str) -> None:
        if self.in_step.is_set():
            self.intrusions.append(name)


@pytest.fixture
def engine(qwen2: Path) -> WatchedEngine:
    engine = WatchedEngine.from_pretrained(qwen2, device="cpu", max_model_len=128, kv_tokens=128 * 5)
    assert isinstance(engine, WatchedEngine)
    engine.watch()
    return engine


@pytest.fixture(params=[True, False], ids=["threaded", "in-loop"])
async def policy(request: pytest.FixtureRequest, engine: WatchedEngine) -> AsyncIterator[EmbeddedPolicy]:
    policy = EmbeddedPolicy(engine, threaded=request.param)
    yield policy
    await policy.close()


def call(number: int) -> tuple[list[int], Sampling]:
    return [number % 96, *range(number % 20)], Sampling(max_new_tokens=3 + number % 30, seed=number)


def alone(folder: Path, number: int) -> tuple[int, ...]:
    return complete(folder, *call(number)).token_ids


async def test_an_engine_that_fails_while_it_admits_leaves_no_caller_waiting(policy, engine, qwen2, monkeypatch):
    """Requests that were on their way from the queue into the batch are in neither."""
    hold = engine.cache.hold
    failures = [torch.OutOfMemoryError("CUDA out of memory")]

    def hold_or_fail(*arguments: Any) -> Any:
        pages = hold(*arguments)
        if failures:
            raise failures.pop()
        return pages

    monkeypatch.setattr(engine.cache, "hold", hold_or_fail)
    async with asyncio.timeout(30):
        calls = (policy.generate(*call(number)) for number in range(3))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {getattr(outcome, "kind", None) for outcome in outcomes} == {"engine"}
        assert not engine.has_work()
        completion = await policy.generate(*call(7))
    assert completion.token_ids == alone(qwen2, 7)
    assert count_idle(engine.cache) == engine.cache.pages


async def test_callers_that_come_go_abort_and_interrupt(policy, engine, qwen2):
    """Half of the calls run to their end; of the others some are cancelled, some aborted, at random moments."""
    rng = random.Random(0)
    exclusive: list[bool] = []

    async def caller(number: int) -> Any:
        await asyncio.sleep(rng.uniform(0, 0.05))
        return await policy.generate(*call(number), request_id=f"c{number}")

    def adopt() -> None:
        exclusive.append(engine.in_step.is_set())
        engine.adopt_weights(str(len(exclusive)))  # the same weights under a new name: tokens stay

    async def interrupter() -> None:
        for _ in range(15):
            await policy.run_exclusive(adopt)
            await asyncio.sleep(rng.uniform(0, 0.01))

    tasks = [asyncio.create_task(caller(number)) for number in range(CALLS)]

    async def leaver(number: int) -> None:
        await asyncio.sleep(rng.uniform(0, 0.12))
        if number % 4 == 1:
            tasks[number].cancel()
        else:
            policy.abort(f"c{number}")

    leavers = (leaver(number) for number in range(1, CALLS, 2))
    async with asyncio.timeout(30):
        calls = asyncio.gather(*tasks, return_exceptions=True)
        outcomes, *_ = await asyncio.gather(calls, interrupter(), interrupter(), *leavers)
    assert engine.intrusions == []
    assert exclusive == [False] * 30
    assert (threading.get_ident() in engine.step_threads) == (not policy.threaded)
    for number, outcome in enumerate(outcomes):
        if isinstance(outcome, asyncio.CancelledError):
            assert number % 4 == 1
            continue
        expected = alone(qwen2, number)
        assert outcome.token_ids == expected[: len(outcome.token_ids)]
        if outcome.finish_reason == "abort":
            assert number % 4 == 3
        else:
            assert outcome.token_ids == expected
        assert 0 <= int(outcome.weight_version) <= 30
    await policy.run_exclusive(lambda: None)  # what was cancelled last is out of the engine by now
    assert not engine.has_work()


async def test_an_exclusive_call_that_fails_fails_alone(policy):
    running = asyncio.create_task(policy.generate(*call(7)))

    def fail() -> None:
        raise OSError("no such weights")

    with pytest.raises(OSError, match="no such weights"):
        await policy.run_exclusive(fail)
    assert len((await running).token_ids) == 10


async def test_a_step_that_fails_fails_the_calls_in_it_and_no_later_one(policy, engine, monkeypatch):
    """Prefixes found before the failure are not trusted after it."""

    def fail() -> list[Any]:
        raise RuntimeError("out of memory")

    prompt, once = list(range(40)), Sampling(max_new_tokens=1)
    assert [(await policy.generate(prompt, once)).cached_tokens for _ in range(2)] == [0, 32]
    with monkeypatch.context() as patched:
        patched.setattr(engine, "step", fail)
        outcomes = await asyncio.gather(*(policy.generate(*call(n)) for n in range(5)), return_exceptions=True)
    assert all(isinstance(outcome, PolicyError) and outcome.kind == "engine" for outcome in outcomes)
    assert not engine.has_work()
    assert len((await policy.generate(*call(2))).token_ids) == 5
    assert (await policy.generate(prompt, once)).cached_tokens == 0


async def test_a_call_made_while_a_step_fails_is_answered(engine):
    policy, step = EmbeddedPolicy(engine, threaded=True), engine.step

    def fail_slowly() -> list[Any]:
        engine.step = step
        engine.in_step.set()
        time.sleep(0.1)
        raise RuntimeError("lost device")

    engine.step = fail_slowly
    first = asyncio.create_task(policy.generate(*call(1)))
    await kit.until(engine.in_step.is_set)
    second = asyncio.create_task(policy.generate(*call(2)))
    with pytest.raises(PolicyError, match="lost device"):
        await first
    assert len((await asyncio.wait_for(second, 5)).token_ids) == 5
    await policy.close()


async def test_giving_up_a_call_spares_another_of_the_same_name(engine):
    policy = EmbeddedPolicy(engine, threaded=True)
    engine.delay = 0.02
    first = asyncio.create_task(policy.generate(*call(4), request_id="same"))
    await kit.until(engine.in_step.is_set)
    second = asyncio.create_task(policy.generate(*call(5), request_id="same"))
    await asyncio.sleep(0)
    second.cancel()
    assert (await first).finish_reason == "length"
    await policy.close()


async def test_closing_fails_what_waits(engine):
    """Calls in the engine, and calls that came while a step was running."""
    policy = EmbeddedPolicy(engine, threaded=True)
    engine.delay = 0.02
    calls = [asyncio.create_task(policy.generate([n], Sampling(max_new_tokens=120, seed=n))) for n in range(10)]
    await kit.until(engine.in_step.is_set)
    calls += [asyncio.create_task(policy.generate([n], Sampling(max_new_tokens=5))) for n in range(3)]
    await asyncio.sleep(0)
    assert engine.in_step.is_set()
    await policy.close()
    async with asyncio.timeout(10):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert len(outcomes) == 13
    assert all(isinstance(outcome, PolicyError) and outcome.kind == "unavailable" for outcome in outcomes)
    assert not engine.has_work()
    assert engine.intrusions == []


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_a_device_that_is_lost_leaves_no_caller_waiting(engine, monkeypatch, cancelled):
    """After a CUDA error every call to the device fails, also those that end requests."""
    policy = EmbeddedPolicy(engine)
    session = Sampling(max_new_tokens=100)
    calls = [asyncio.create_task(policy.generate([n] * 20, session, session="s")) for n in range(8)]
    while engine.stats().num_running < 5:
        await asyncio.sleep(0)

    def fail(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("CUDA error")

    places = ((engine.cache, "release"), (engine.cache, "name"), (engine, "flush_cache"), (engine, "_compute"))
    for owner, name in places:
        monkeypatch.setattr(owner, name, fail)
    for call in calls[:cancelled]:
        call.cancel()
    async with asyncio.timeout(10):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {getattr(outcome, "kind", None) for outcome in outcomes[cancelled:]} == {"engine"}
    assert not engine.has_work()
    await policy.close()
