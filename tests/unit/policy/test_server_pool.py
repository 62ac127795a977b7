"""A pool of real servers of ours: who gets a call, whose reply counts, and who comes back with which weights."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer

from core.engine import weights
from core.engine.engine import Engine
from core.engine.policy import EmbeddedPolicy
from core.engine.server import Server
from core.policy import server_pool
from core.policy.base import PolicyError
from core.policy.http_policy import HTTPPolicy
from core.policy.scripted import ScriptedPolicy
from core.policy.server_pool import ServerPool
from core.policy.sglang import SGLangPolicy
from core.train import rollout_engine
from core.train.rollout_engine import make_check
from core.types import Completion, Sampling
from tests import kit
from tests.kit import ModelHost, start_hosts, until

SAMPLING = Sampling(max_new_tokens=4, seed=1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return kit.save_model(folder / "start", seed=0), kit.save_model(folder / "trained", seed=1)


@pytest.fixture
async def hosts(models: tuple[Path, Path]) -> AsyncIterator[list[ModelHost]]:
    async with start_hosts(models[0], 3) as hosts:
        yield hosts


@pytest.fixture
async def pool(hosts: list[ModelHost], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServerPool]:
    monkeypatch.setattr(server_pool, "FIRST_PAUSE_S", 0.02)
    pool = ServerPool([host.url for host in hosts], timeout_s=20)
    yield pool
    await pool.close()


async def call(pool: ServerPool, session: str | None = None, prompt: int = 5) -> str:
    completion = await pool.generate(range(1, 1 + prompt), SAMPLING, session)
    return completion.weight_version


async def test_every_server_gets_the_weights_and_says_so(pool, hosts, models) -> None:
    await pool.update_weights(models[0], 6)
    start = (await pool.generate([1, 2, 3], SAMPLING)).logprobs
    await pool.update_weights(models[1], 7)
    assert [host.engine.weight_version.rpartition("-")[2] for host in hosts] == ["7", "7", "7"]
    completions = await asyncio.gather(*(pool.generate([1, 2, 3], SAMPLING) for _ in range(9)))
    assert {completion.weight_version for completion in completions} == {"7"}
    expected = Engine.from_pretrained(models[1], device="cpu", max_model_len=64, kv_tokens=64)
    request = expected.submit([1, 2, 3], SAMPLING)
    while expected.has_work():
        expected.step()
    for completion in completions:
        assert completion.token_ids == request.completion.token_ids
        assert completion.logprobs == pytest.approx(request.completion.logprobs, abs=1e-6) != start


async def test_a_call_aborted_before_its_first_token_blames_no_server(pool, models, monkeypatch) -> None:
    """vLLM names no weights then."""

    async def abort(self: SGLangPolicy, *_: object) -> Completion:
        return Completion((), (), "abort", "default")

    await pool.update_weights(models[0], 3)
    monkeypatch.setattr(SGLangPolicy, "generate", abort)
    completion = await pool.generate([1, 2], SAMPLING)
    assert (completion.finish_reason, completion.weight_version, pool.left_out) == ("abort", "3", 0)


async def test_work_goes_where_least_is_waiting(pool, hosts, models) -> None:
    """Two hosts answer nothing. Each holds a third of the first calls, and all later ones go to the third host."""
    await pool.update_weights(models[0], 1)
    for host in hosts[:2]:
        host.open.clear()
    held = [asyncio.create_task(call(pool)) for _ in range(6)]
    await until(lambda: sum(host.calls for host in hosts) == 6)
    assert [host.calls for host in hosts] == [2, 2, 2]
    await until(lambda: sum(task.done() for task in held) == 2)
    for _ in range(20):
        await call(pool)
    assert [host.calls for host in hosts] == [2, 2, 22]
    for host in hosts:
        host.open.set()
    assert set(await asyncio.gather(*held)) == {"1"}


class PacedHost(ModelHost):
    """A host that serves two calls at a time, each of which takes some seconds; the others wait."""

    def __init__(self, model: Path, seconds: float):
        super().__init__(model)
        self.seconds = seconds
        self.slots = asyncio.Semaphore(2)

    @web.middleware
    async def _hold(self, request: web.Request, handler: Callable) -> web.StreamResponse:
        if request.path == "/generate":
            async with self.slots:
                await asyncio.sleep(self.seconds)
        return await handler(request)


async def test_a_slow_server_costs_the_others_nothing_and_a_session_moves_at_most_once(models) -> None:
    """Three servers, one five times slower, against three such that have a trainer each: all at the same time."""
    calls, turns, each = 120, 4, 4
    hosts = [PacedHost(models[0], seconds) for seconds in (0.1, 0.1, 0.5) * 2]
    for host in hosts:
        await host.start()
    pools = [
        ServerPool([host.url for host in group], timeout_s=20) for group in (hosts[:3], *([one] for one in hosts[3:]))
    ]
    for pool in pools:
        await pool.update_weights(models[0], 1)
    answered: Counter[str] = Counter()
    places: dict[str, list[str]] = defaultdict(list)

    async def converse(pool: ServerPool, side: str) -> None:
        for number in count():
            if number % turns == 0:
                session = uuid4().hex
            await call(pool, session)
            if answered["apart"] == calls:
                return
            answered[side] += 1
            places[session].append(pool._homes[session].server.policy.url)

    together = [converse(pools[0], "together") for _ in range(3 * each)]
    apart = [converse(pool, "apart") for pool in pools[1:] for _ in range(each)]
    await asyncio.gather(*together, *apart)
    assert answered["together"] >= 0.9 * calls
    assert len({url for urls in places.values() for url in urls}) == 6
    assert max(sum(a != b for a, b in pairwise(urls)) for urls in places.values()) <= 1
    for pool in pools:
        await pool.close()
    for host in hosts:
        await host.stop()


async def test_a_dead_server_is_left_out_and_comes_back_with_the_present_weights(pool, hosts, models) -> None:
    await pool.update_weights(models[0], 1)
    await hosts[0].stop()
    assert [await call(pool) for _ in range(6)] == ["1"] * 6
    assert (pool.left_out, hosts[1].calls + hosts[2].calls) == (1, 6)
    await pool.update_weights(models[1], 2)
    await hosts[0].start()
    await until(lambda: hosts[0].engine.weight_version.endswith("-2"))
    hosts[0].calls = 0
    await until(lambda: all(server.up for server in pool._servers))
    assert {await call(pool) for _ in range(6)} == {"2"}


@pytest.mark.parametrize("step", [0, 3])
async def test_a_reply_of_other_weights_is_refused(pool, hosts, models, step: int) -> None:
    """A host that lost its weights answers with those it was started with, and one is taken by another trainer."""
    await pool.update_weights(models[1], step)
    await hosts[0].stop()
    await hosts[0].start()
    assert hosts[0].engine.weight_version == "0"
    other = ServerPool([hosts[1].url], timeout_s=20)
    await other.update_weights(models[0], 5)
    assert await asyncio.gather(*(call(pool) for _ in range(9))) == [str(step)] * 9
    assert (pool.left_out, hosts[0].calls > 0, hosts[1].calls > 0) == (2, True, True)
    await other.close()
    await until(lambda: all(host.engine.weight_version.endswith(f"-{step}") for host in hosts))


@pytest.mark.parametrize("change", [0.2, 0.002])
async def test_a_server_that_keeps_old_weights_in_part_is_left_out(tmp_path, monkeypatch, change: float) -> None:
    """Its tied head has a copy of the weights, which new ones do not reach: as in vLLM on CPUs."""
    start, trained = kit.save_model(tmp_path / "0", 0, tie_word_embeddings=True, initializer_range=0.2), tmp_path / "1"
    torch.manual_seed(0)
    network, limits = weights.load(start, device="cpu"), {}
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(change * torch.randn_like(parameter))
    weights.save(network, trained, like=start)
    monkeypatch.setattr(server_pool, "FIRST_PAUSE_S", 0.02)
    hosts = [ModelHost(start) for _ in range(2)]
    for host in hosts:
        await host.start()
    head = hosts[0].engine.model.lm_head
    old = head.weight.detach().clone()
    del head.weight
    head.weight = old
    pool = ServerPool([host.url for host in hosts], timeout_s=20)
    await pool.update_weights(start, 1, make_check(weights.load(start, device="cpu"), 1.0, limits))
    assert pool.left_out == 0
    await pool.update_weights(trained, 2, make_check(network, 1.0, limits))
    assert [server.up for server in pool._servers] == [False, True]
    assert {await call(pool) for _ in range(4)} == {"2"}
    await asyncio.sleep(0.3)  # it is asked again, and says again that it has the weights
    assert hosts[0].engine.weight_version.endswith("-2")
    assert not pool._servers[0].up
    del head.weight
    head.weight = hosts[0].engine.model.model.embed_tokens.weight
    await until(lambda: all(server.up for server in pool._servers))
    await pool.close()
    for host in hosts:
        await host.stop()


class SlowCheck:
    """A check that one host fails or passes, and only when the gate opens."""

    def __init__(self, host: ModelHost, passes: bool):
        self.host = host
        self.passes = passes
        self.gate = asyncio.Event()

    async def __call__(self, policy: HTTPPolicy) -> None:
        if policy.url == self.host.url:
            await self.gate.wait()
            if not self.passes:
                raise PolicyError("engine", "old weights")


async def update_slowly(pool: ServerPool, hosts: list[ModelHost], models: tuple[Path, Path]) -> tuple[SlowCheck, Any]:
    """Give the hosts new weights, of which the check of the first is not over; it has the session `at home`."""
    await pool.update_weights(models[0], 1)
    await call(pool, "at home")
    check = SlowCheck(hosts[0], passes=True)
    update = asyncio.create_task(pool.update_weights(models[1], 2, check))
    await until(lambda: all(host.engine.weight_version.endswith("-2") for host in hosts))
    return check, update


async def test_a_server_gets_no_calls_before_its_new_weights_are_checked(pool, hosts, models) -> None:
    check, update = await update_slowly(pool, hosts, models)
    stays = asyncio.create_task(call(pool, "at home"))
    assert {await call(pool) for _ in range(6)} == {"2"}
    assert (hosts[0].calls, stays.done()) == (1, False)
    check.gate.set()
    await update
    assert (await stays, hosts[0].calls) == ("2", 2)


async def test_a_session_moves_when_its_server_takes_long_over_new_weights(pool, hosts, models, monkeypatch) -> None:
    check, update = await update_slowly(pool, hosts, models)
    monkeypatch.setattr(pool, "_timeout_s", 1.0)
    assert [await call(pool, "at home") for _ in range(2)] == ["2", "2"]
    assert (hosts[0].calls, pool.left_out) == (1, 0)
    check.gate.set()
    await update


@pytest.mark.parametrize("passes", [True, False])
async def test_a_reply_of_weights_that_came_during_the_call_waits_for_their_check(pool, hosts, models, passes) -> None:
    await pool.update_weights(models[0], 1)
    hosts[0].open.clear()
    reply = asyncio.create_task(call(pool))
    await until(lambda: hosts[0].calls == 1)
    check = SlowCheck(hosts[0], passes)
    update = asyncio.create_task(pool.update_weights(models[1], 2, check))
    await until(lambda: hosts[0].engine.weight_version.endswith("-2"))
    hosts[0].open.set()
    await asyncio.sleep(0.2)
    assert not reply.done()
    check.gate.set()
    await update
    assert await reply == "2"
    assert (pool.left_out, hosts[1].calls + hosts[2].calls) == ((0, 0) if passes else (1, 1))


async def test_a_server_that_hangs_holds_up_no_weights(pool, hosts, models, monkeypatch) -> None:
    """It takes connections and never answers: only the update that finds this out waits for it."""
    monkeypatch.setattr(server_pool, "UPDATE_S", 1.0)
    await pool.update_weights(models[0], 1)
    await hosts[0].stop()
    silent = await asyncio.start_server(lambda *_: asyncio.sleep(60), "127.0.0.1", hosts[0].port)
    await pool.update_weights(models[0], 2)
    began = asyncio.get_running_loop().time()
    await pool.update_weights(models[0], 3)
    assert asyncio.get_running_loop().time() - began < 0.9
    assert {await call(pool) for _ in range(4)} == {"3"}
    silent.close()


async def test_a_healthy_server_that_hangs_on_new_weights_holds_up_none(pool, hosts, models, monkeypatch) -> None:
    """It came back, and answers all but the weights."""
    await pool.update_weights(models[0], 1)
    await hosts[0].stop()
    await pool.update_weights(models[0], 2)
    hung, update = asyncio.Event(), HTTPPolicy.update_weights

    async def hang(policy: HTTPPolicy, *args: object) -> None:
        if policy.url == hosts[0].url:
            hung.set()
            await asyncio.sleep(60)
        await update(policy, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(HTTPPolicy, "update_weights", hang)
    await hosts[0].start()
    await asyncio.wait_for(hung.wait(), 20)
    await asyncio.wait_for(pool.update_weights(models[0], 3), 5)
    assert {await call(pool) for _ in range(4)} == {"3"}


async def test_a_server_that_fails_its_check_in_a_way_of_its_own_is_asked_again(pool, hosts, models) -> None:
    """A server that came back with another model may say a token that the trainer's has not."""
    await pool.update_weights(models[0], 1)
    await hosts[0].stop()
    faults = [IndexError("index 99 is out of bounds"), PolicyError("engine", "old weights")]

    async def check(policy: HTTPPolicy) -> None:
        if policy.url == hosts[0].url and faults:
            raise faults.pop(0)

    await pool.update_weights(models[1], 2, check)
    await hosts[0].start()
    await until(lambda: all(server.up for server in pool._servers))
    assert (faults, {await call(pool) for _ in range(6)}) == ([], {"2"})


async def test_servers_that_are_all_away_for_a_moment_end_no_run(pool, hosts, models) -> None:
    await pool.update_weights(models[0], 1)
    for host in hosts:
        await host.stop()
    await pool.update_weights(models[1], 2)
    await hosts[2].start()
    assert await call(pool) == "2"


async def test_calls_wait_while_all_servers_are_away_and_then_say_so(hosts, models, monkeypatch) -> None:
    monkeypatch.setattr(server_pool, "FIRST_PAUSE_S", 0.02)
    pool = ServerPool([host.url for host in hosts], timeout_s=1)
    await pool.update_weights(models[0], 1)
    for host in hosts:
        await host.stop()
    waiting = asyncio.create_task(call(pool))
    await until(lambda: pool.left_out == 3)
    await hosts[1].start()
    assert await waiting == "1"
    await hosts[1].stop()
    with pytest.raises(PolicyError, match=r"none of http.* came back within 1 s"):
        await call(pool)
    await pool.close()


async def test_weights_that_no_server_takes_are_an_error(pool, tmp_path) -> None:
    with pytest.raises(PolicyError, match="no such folder"):
        await pool.update_weights(tmp_path / "absent", 1)


async def test_a_server_that_hangs_in_its_check_holds_the_trainer_up_no_longer_than_a_check_may_take(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_engine, "CHECK_S", 0.1)
    check = make_check(weights.load(models[0], device="cpu"), 1.0)
    hanging = ScriptedPolicy(lambda prompt, sampling: prompt, latency=60)
    with pytest.raises(PolicyError, match=r"no answer to short calls within 0\.1 s"):
        await check(hanging)


async def test_the_servers_of_a_pool_get_their_key_from_a_file(models: tuple[Path, Path], tmp_path: Path) -> None:
    engine = Engine.from_pretrained(models[0], device="cpu", max_model_len=64, kv_tokens=640)
    (tmp_path / "key").write_text("open sesame\n")
    async with TestServer(Server(EmbeddedPolicy(engine), "tiny", api_key="open sesame").app()) as server:
        url = f"http://127.0.0.1:{server.port}"
        without, pool = (ServerPool([url], timeout_s=20, api_key_file=key) for key in (None, tmp_path / "key"))
        with pytest.raises(PolicyError, match="401"):
            await without.update_weights(models[0], 1)
        await pool.update_weights(models[0], 1)
        assert await call(pool) == "1"
        for each in (without, pool):
            await each.close()
