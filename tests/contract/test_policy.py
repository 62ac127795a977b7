"""What every Policy promises, whichever engine is behind it: scripted, embedded in process, embedded over HTTP."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from core.engine.engine import Engine
from core.engine.policy import EmbeddedPolicy
from core.engine.server import Server
from core.policy.base import Policy, PolicyError
from core.policy.scripted import ScriptedPolicy
from core.policy.sglang import SGLangPolicy
from core.types import Completion, Sampling

VOCAB = 128
CONTEXT = 2048
SAMPLED = Sampling(max_new_tokens=12, seed=1)
GREEDY = Sampling(temperature=0.0, max_new_tokens=12)


@dataclass
class Rig:
    """A policy under test, and the engine behind it if there is one."""

    policy: Policy
    engine: Engine | None = None


@asynccontextmanager
async def scripted(_: Path) -> AsyncIterator[Rig]:
    def respond(prompt: tuple[int, ...], sampling: Sampling) -> list[int] | Exception:
        if not prompt or max(prompt) >= VOCAB or len(prompt) + sampling.max_new_tokens > CONTEXT:
            return PolicyError("bad_request", "input_ids: refused")
        draw = random.Random(hash(prompt) if sampling.temperature == 0 else hash((prompt, sampling.seed)))
        return [draw.randrange(VOCAB) for _ in range(CONTEXT)]

    policy = ScriptedPolicy(respond, latency=0.05)
    yield Rig(policy)


@asynccontextmanager
async def embedded(model: Path, *, threaded: bool = False) -> AsyncIterator[Rig]:
    engine = Engine.from_pretrained(str(model), max_model_len=CONTEXT, kv_tokens=8 * CONTEXT)
    policy = EmbeddedPolicy(engine, threaded=threaded)
    yield Rig(policy, engine)
    await policy.close()


@asynccontextmanager
async def over_http(model: Path) -> AsyncIterator[Rig]:
    async with embedded(model, threaded=True) as rig:
        assert isinstance(rig.policy, EmbeddedPolicy)
        server = TestServer(Server(rig.policy, str(model)).app())
        await server.start_server(shutdown_timeout=0)
        async with SGLangPolicy(f"http://127.0.0.1:{server.port}", max_retries=0, timeout_s=30) as policy:
            yield replace(rig, policy=policy)
        await server.close()


@pytest.fixture(params=[scripted, embedded, over_http], ids=lambda rig: rig.__name__)
async def rig(request: pytest.FixtureRequest, tiny_model: Path) -> AsyncIterator[Rig]:
    async with request.param(tiny_model) as rig:
        yield rig


async def test_fills_the_budget(rig: Rig) -> None:
    completion = await rig.policy.generate([1, 2, 3], SAMPLED)
    assert len(completion.token_ids) == 12
    assert completion.finish_reason == "length"
    assert all(0 <= token_id < VOCAB for token_id in completion.token_ids)
    assert all(math.isfinite(logprob) and logprob <= 0 for logprob in completion.logprobs)
    assert isinstance(completion.weight_version, str)


async def test_ends_on_the_first_stop_id_and_returns_it(rig: Rig) -> None:
    free = await rig.policy.generate([1, 2, 3], SAMPLED)
    stop = free.token_ids[5]
    stopped = await rig.policy.generate([1, 2, 3], replace(SAMPLED, stop_token_ids=(stop,)))
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]


async def test_a_seed_fixes_the_tokens(rig: Rig) -> None:
    first = await rig.policy.generate([4, 5], SAMPLED)
    again = await rig.policy.generate([4, 5], SAMPLED)
    other = await rig.policy.generate([4, 5], replace(SAMPLED, seed=2))
    assert first.token_ids == again.token_ids
    assert first.token_ids != other.token_ids


async def test_greedy_ignores_the_seed(rig: Rig) -> None:
    first, second = [await rig.policy.generate([4, 5], replace(GREEDY, seed=seed)) for seed in (1, 2)]
    assert first.token_ids == second.token_ids


async def test_calls_at_once_do_not_see_each_other(rig: Rig) -> None:
    """More calls than the engine has room for, of different lengths, against the same calls one by one."""
    calls = [
        ([n % 5, *range(n)], replace(SAMPLED, seed=n, max_new_tokens=3 + n % 7, temperature=0.5 + n % 3))
        for n in range(1, 25)
    ]
    together = await asyncio.gather(*(rig.policy.generate(*call) for call in calls))
    alone = [await rig.policy.generate(*call) for call in calls]
    assert [completion.token_ids for completion in together] == [completion.token_ids for completion in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


async def test_a_session_changes_nothing_but_the_work(rig: Rig) -> None:
    first = await rig.policy.generate(range(40), SAMPLED, session="s")
    prompt = [*range(40), *first.token_ids, 7]
    second = await rig.policy.generate(prompt, SAMPLED, session="s")
    alone = await rig.policy.generate(prompt, SAMPLED)
    assert second.token_ids == alone.token_ids
    assert second.logprobs == pytest.approx(alone.logprobs, abs=1e-5)
    assert (second.cached_tokens > 0) == (rig.engine is not None)


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [([], SAMPLED), ([VOCAB], SAMPLED), ([1], replace(SAMPLED, max_new_tokens=CONTEXT)), ([1] * CONTEXT, SAMPLED)],
    ids=["empty", "beyond-vocabulary", "budget-beyond-context", "prompt-beyond-context"],
)
async def test_a_bad_prompt_is_a_policy_error_and_harms_no_other_call(
    rig: Rig, prompt: list[int], sampling: Sampling
) -> None:
    good = rig.policy.generate([1], SAMPLED)
    bad = rig.policy.generate(prompt, sampling)
    outcomes = await asyncio.gather(good, bad, return_exceptions=True)
    assert isinstance(outcomes[0], Completion)
    assert isinstance(outcomes[1], PolicyError)
    assert outcomes[1].kind in ("bad_request", "http_400")
    assert "input_ids" in str(outcomes[1])


async def test_a_cancelled_call_stops_and_harms_no_other_call(rig: Rig) -> None:
    doomed = asyncio.create_task(rig.policy.generate([1], Sampling(max_new_tokens=CONTEXT - 1, seed=3)))
    survivor = asyncio.create_task(rig.policy.generate([2], SAMPLED))
    await asyncio.sleep(0.005)  # less than the scripted latency, and than any engine needs for the doomed call
    doomed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doomed
    assert len((await survivor).token_ids) == 12
    if rig.engine is not None:
        async with asyncio.timeout(20):
            while rig.engine.has_work():
                await asyncio.sleep(0.005)
        assert rig.engine.stats().generated_tokens < CONTEXT - 1


async def test_http_returns_what_the_engine_returned(tiny_model: Path) -> None:
    sampling = Sampling(temperature=0.8, top_p=0.9, top_k=30, max_new_tokens=20, seed=2**40)
    async with embedded(tiny_model) as here, over_http(tiny_model) as there:
        assert await here.policy.generate([1, 2], sampling) == await there.policy.generate([1, 2], sampling)


async def test_cancelled_exclusive_calls_harm_no_completion(tiny_model: Path) -> None:
    """Such as a client of the server that goes away during a weight update."""
    async with embedded(tiny_model, threaded=True) as rig:
        assert isinstance(rig.policy, EmbeddedPolicy)
        call = asyncio.create_task(rig.policy.generate([1], replace(GREEDY, max_new_tokens=300)))
        for _ in range(20):
            exclusive = asyncio.create_task(rig.policy.run_exclusive(lambda: None))
            await asyncio.sleep(0)
            exclusive.cancel()
        completion = await asyncio.wait_for(call, timeout=20)
    assert len(completion.token_ids) == 300
