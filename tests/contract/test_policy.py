"""What every Policy promises, whatever is behind it: a script, our engine in process, over SGLang's or vLLM's wire, two
of our servers, SGLang, vLLM.

The last two run where `--sglang-url` and `--vllm-url` name servers of this suite's tiny model, with a context of
CONTEXT tokens.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest

from core.engine.engine import Engine
from core.engine.policy import EmbeddedPolicy
from core.engine.server import Server
from core.policy.base import Policy, PolicyError
from core.policy.scripted import ScriptedPolicy
from core.policy.server_pool import ServerPool
from core.policy.sglang import SGLangPolicy
from core.policy.vllm import VLLMPolicy
from core.types import Completion, Sampling
from tests.kit import count_vllm_requests, require, serve_here

VOCAB = 128
CONTEXT = 2048
SAMPLED = Sampling(max_new_tokens=12, seed=1)
GREEDY = Sampling(temperature=0.0, max_new_tokens=12)


def letters(token_ids: Sequence[int]) -> str:
    """A tokenizer's `decode` for this suite's model, whose vocabulary means nothing: a letter for each id."""
    return "".join(chr(0x4E00 + token_id) for token_id in token_ids)


@dataclass
class Rig:
    """A policy under test. What is behind it says how many requests it runs (None: nothing is behind it).

    `sampling` is what the policy repeats exactly when asked twice. A real server of this suite's model has no
    tokenizer, and `decodes` nothing.
    """

    policy: Policy
    running: Callable[[], Awaitable[int]] | None = None
    sampling: Sampling = SAMPLED
    embedded: EmbeddedPolicy | None = None
    decodes: bool = True


@asynccontextmanager
async def scripted(_: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    def respond(prompt: tuple[int, ...], sampling: Sampling) -> list[int] | Exception:
        budget = sampling.max_new_tokens
        if not prompt or not 0 <= min(prompt) <= max(prompt) < VOCAB or not 0 < budget <= CONTEXT - len(prompt):
            beyond = len(prompt) + budget > CONTEXT
            return PolicyError("too_long" if beyond else "bad_request", "input_ids or max_new_tokens: refused")
        draw = random.Random(hash(prompt) if sampling.temperature == 0 else hash((prompt, sampling.seed)))
        return [draw.randrange(VOCAB) for _ in range(CONTEXT)]

    policy = ScriptedPolicy(respond, latency=0.05, decode=letters)
    yield Rig(policy)


@asynccontextmanager
async def embedded(request: pytest.FixtureRequest, *, threaded: bool = False) -> AsyncIterator[Rig]:
    model = request.getfixturevalue("tiny_model")
    engine = Engine.from_pretrained(model, max_model_len=CONTEXT, kv_tokens=8 * CONTEXT, decode=letters)
    policy = EmbeddedPolicy(engine, threaded=threaded)

    async def running() -> int:
        return engine.stats().num_running + engine.stats().num_waiting

    yield Rig(policy, running, embedded=policy)
    await policy.close()


@asynccontextmanager
async def over_http(
    request: pytest.FixtureRequest, client: type[SGLangPolicy | VLLMPolicy] = SGLangPolicy
) -> AsyncIterator[Rig]:
    async with embedded(request, threaded=True) as rig:
        assert rig.embedded is not None
        app = Server(rig.embedded, "tiny").app()
        async with serve_here(app) as url, client(url, max_retries=0, timeout_s=30) as policy:
            yield replace(rig, policy=policy)


@asynccontextmanager
async def over_vllms_wire(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with over_http(request, VLLMPolicy) as rig:
        yield rig


@asynccontextmanager
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """Two of our servers behind one policy."""
    async with over_http(request) as one, over_http(request) as two:
        assert isinstance(one.policy, SGLangPolicy)
        assert isinstance(two.policy, SGLangPolicy)
        assert one.running is not None
        assert two.running is not None
        running = [one.running, two.running]
        policy = ServerPool([one.policy.url, two.policy.url], timeout_s=30)
        await policy.update_weights(request.getfixturevalue("tiny_model"), 0)
        yield Rig(policy, lambda: add_up(running))
        await policy.close()


async def add_up(counts: Sequence[Callable[[], Awaitable[int]]]) -> int:
    return sum([await count() for count in counts])


@asynccontextmanager
async def sglang(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """A real worker, or a router in front of some. Without deterministic inference it repeats greedy calls alone."""
    url = request.config.getoption("--sglang-url")
    require(url, "needs --sglang-url: `python -m tests.optional.sglang_cpu` starts a server and runs this suite on it")
    async with SGLangPolicy(url, max_retries=0, timeout_s=60) as policy, aiohttp.ClientSession() as http:
        async with http.get(f"{url}/workers") as response:
            listing = await response.json() if response.status == 200 else {"workers": [{"url": url}]}

        async def running() -> int:
            number = 0
            for worker in listing["workers"]:
                async with http.get(f"{worker['url'].rstrip('/')}/v1/loads") as response:
                    loads = (await response.json())["loads"]
                number += sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)
            return number

        yield Rig(policy, running, sampling=GREEDY, decodes=False)


@asynccontextmanager
async def vllm(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    url = request.config.getoption("--vllm-url")
    require(url, "needs --vllm-url: `python -m tests.optional.vllm_cpu` starts a server and runs this suite on it")
    async with VLLMPolicy(url, max_retries=0, timeout_s=60) as policy, aiohttp.ClientSession() as http:
        yield Rig(policy, lambda: count_vllm_requests(http, url), decodes=False)


@pytest.fixture(
    params=[scripted, embedded, over_http, over_vllms_wire, pool, sglang, vllm], ids=lambda rig: rig.__name__
)
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with request.param(request) as rig:
        yield rig


async def test_fills_the_budget(rig: Rig) -> None:
    completion = await rig.policy.generate([1, 2, 3], rig.sampling)
    assert len(completion.token_ids) == 12
    assert completion.finish_reason == "length"
    assert all(0 <= token_id < VOCAB for token_id in completion.token_ids)
    assert all(math.isfinite(logprob) and logprob <= 0 for logprob in completion.logprobs)
    assert isinstance(completion.weight_version, str)


async def test_ends_on_the_first_stop_id_and_returns_it(rig: Rig) -> None:
    free = await rig.policy.generate([1, 2, 3], rig.sampling)
    stop = free.token_ids[5]
    stopped = await rig.policy.generate([1, 2, 3], replace(rig.sampling, stop_token_ids=(stop,)))
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]


async def test_ends_with_the_token_that_completes_a_stop_text_and_returns_it(rig: Rig) -> None:
    if not rig.decodes:
        pytest.skip("a server of this suite's model has no tokenizer; tests.optional looks at servers that have one")
    free = await rig.policy.generate([1, 2, 3], rig.sampling)
    wanted = letters(free.token_ids[4:6])
    end = letters(free.token_ids).index(wanted) + 2
    for stop in ((wanted,), ("never said", wanted), (wanted, letters(free.token_ids[9:12]))):
        stopped = await rig.policy.generate([1, 2, 3], replace(rig.sampling, stop=stop))
        assert (stopped.token_ids, stopped.finish_reason) == (free.token_ids[:end], "stop")
    unstopped = await rig.policy.generate([1, 2, 3], replace(rig.sampling, stop=("never said",)))
    assert (unstopped.token_ids, unstopped.finish_reason) == (free.token_ids, "length")


async def test_a_seed_fixes_the_tokens(rig: Rig) -> None:
    if rig.sampling is not SAMPLED:
        pytest.skip("SGLang honours seeds only with --enable-deterministic-inference, which has no backend for CPUs")
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
        (
            [n % 5, *range(n)],
            replace(
                rig.sampling, seed=n, max_new_tokens=3 + n % 7, temperature=rig.sampling.temperature * (1 + n % 3) / 2
            ),
        )
        for n in range(1, 25)
    ]
    together = await asyncio.gather(*(rig.policy.generate(*call) for call in calls))
    alone = [await rig.policy.generate(*call) for call in calls]
    assert [completion.token_ids for completion in together] == [completion.token_ids for completion in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


async def test_a_session_changes_nothing_but_the_work(rig: Rig) -> None:
    first = await rig.policy.generate(range(40), rig.sampling, session="s")
    prompt = [*range(40), *first.token_ids, 7]
    second = await rig.policy.generate(prompt, rig.sampling, session="s")
    alone = await rig.policy.generate(prompt, rig.sampling)
    assert second.token_ids == alone.token_ids
    assert second.logprobs == pytest.approx(alone.logprobs, abs=1e-5)
    assert ((second.cached_tokens or 0) > 0) == (rig.running is not None)


BAD_CALLS: dict[str, tuple[list[int], dict[str, Any]]] = {
    "empty": ([], {}),
    "negative": ([1, -1], {}),
    "beyond-vocabulary": ([VOCAB], {}),
    "no-budget": ([1], {"max_new_tokens": 0}),
    "budget-beyond-context": ([1], {"max_new_tokens": CONTEXT}),
    "prompt-beyond-context": ([1] * CONTEXT, {}),
    "empty-stop-text": ([1], {"stop": ("",)}),
}


@pytest.mark.parametrize(("prompt", "changes"), BAD_CALLS.values(), ids=BAD_CALLS)
async def test_a_bad_call_is_refused_and_harms_no_other(rig: Rig, prompt: list[int], changes: dict[str, Any]) -> None:
    if prompt == [VOCAB] and not rig.decodes:
        pytest.skip("SGLang 0.5.23 lets an id beyond the vocabulary through, and so does vLLM without a tokenizer")
    good = rig.policy.generate([1], rig.sampling)
    bad = rig.policy.generate(prompt, replace(rig.sampling, **changes))
    outcomes = await asyncio.gather(good, bad, return_exceptions=True)
    assert isinstance(outcomes[0], Completion)
    assert isinstance(outcomes[1], PolicyError)
    beyond = len(prompt) + changes.get("max_new_tokens", rig.sampling.max_new_tokens) > CONTEXT
    assert outcomes[1].kind == ("too_long" if beyond else "bad_request")
    assert any(named in str(outcomes[1]) for named in ("input_ids", "max_new_tokens", "tokens", "stop"))


async def test_a_cancelled_call_stops_and_harms_no_other(rig: Rig) -> None:
    """It stops well before its end: its twin, begun at the same time, still runs."""
    long = replace(rig.sampling, max_new_tokens=CONTEXT - 1)
    doomed, twin = [asyncio.create_task(rig.policy.generate([1], long)) for _ in range(2)]
    if rig.running is None:
        await asyncio.sleep(0.005)  # less than the scripted latency
    else:
        await until_running(rig, 2)
    doomed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doomed
    if rig.running is not None:
        await until_running(rig, 1)
        assert not twin.done()
        assert len((await rig.policy.generate([2], rig.sampling)).token_ids) == 12
        twin.cancel()
        await until_running(rig, 0)
    else:
        assert len((await twin).token_ids) == CONTEXT - 1


async def until_running(rig: Rig, number: int) -> None:
    assert rig.running is not None
    async with asyncio.timeout(20):
        while await rig.running() != number:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("make", [embedded, over_http, over_vllms_wire], ids=lambda rig: rig.__name__)
async def test_an_engine_that_fails_and_a_policy_that_closes_have_one_name_each(
    make: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    def broken() -> Any:
        raise RuntimeError("out of memory")

    async with make(request) as rig:
        step, rig.embedded.engine.step = rig.embedded.engine.step, broken
        with pytest.raises(PolicyError, match="out of memory") as caught:
            await rig.policy.generate([1], SAMPLED)
        assert caught.value.kind == "engine"

        rig.embedded.engine.step = step
        call = asyncio.create_task(rig.policy.generate([1], replace(SAMPLED, max_new_tokens=CONTEXT - 1)))
        await until_running(rig, 1)
        await rig.embedded.close()
        with pytest.raises(PolicyError, match="closed") as caught:
            await call
        assert caught.value.kind == "unavailable"
        with pytest.raises(PolicyError, match="closed"):
            await rig.embedded.generate([1], SAMPLED)
        with pytest.raises(PolicyError, match="closed"):
            await rig.embedded.run_exclusive(lambda: None)


@pytest.mark.parametrize("make", [over_http, over_vllms_wire], ids=lambda rig: rig.__name__)
async def test_http_returns_what_the_engine_returned(make: Callable[..., Any], request: pytest.FixtureRequest) -> None:
    sampling = Sampling(temperature=0.8, top_p=0.9, top_k=30, max_new_tokens=20, seed=2**40)
    async with embedded(request) as here, make(request) as there:
        assert await here.policy.generate([1, 2], sampling) == await there.policy.generate([1, 2], sampling)


@pytest.mark.parametrize("make", [over_http, over_vllms_wire, sglang, vllm], ids=lambda rig: rig.__name__)
async def test_greedy_tokens_and_log_probs_are_those_of_the_engine(
    make: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    async with embedded(request) as here, make(request) as there:
        for prompt in ([1, 2], [*range(100)]):
            one, other = [await rig.policy.generate(prompt, GREEDY) for rig in (here, there)]
            assert one.token_ids == other.token_ids
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


async def test_cancelled_exclusive_calls_harm_no_completion(request: pytest.FixtureRequest) -> None:
    """Such as a client of the server that goes away during a weight update."""
    async with embedded(request, threaded=True) as rig:
        assert rig.embedded is not None
        call = asyncio.create_task(rig.policy.generate([1], replace(GREEDY, max_new_tokens=300)))
        for _ in range(20):
            exclusive = asyncio.create_task(rig.embedded.run_exclusive(lambda: None))
            await asyncio.sleep(0)
            exclusive.cancel()
        completion = await asyncio.wait_for(call, timeout=20)
    assert len(completion.token_ids) == 300
