"""SGLangPolicy against a real loopback server that misbehaves in each way a server can."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import unused_port

from core.policy.base import PolicyError
from core.policy.sglang import SGLangPolicy
from core.types import Completion, Sampling
from tests.kit import serve_here

pytestmark = pytest.mark.asyncio

PROMPT = [5, 6, 7]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def reply(
    ids: list[Any], finish: str = "stop", *, logprobs: list[Any] | None = None, **meta: Any
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """A handler that answers as SGLang does; `meta` overrides fields of meta_info, None removes one."""
    logprobs = [-0.5] * len(ids) if logprobs is None else logprobs
    meta_info = {
        "finish_reason": {"type": finish},
        "completion_tokens": len(ids),
        "output_token_logprobs": [[lp, i, None] for lp, i in zip(logprobs, ids, strict=True)],
        "cached_tokens": 2,
        "weight_version": "7",
    } | meta
    body = {"text": "", "meta_info": {name: value for name, value in meta_info.items() if value is not None}}

    async def handle(_: web.Request) -> web.Response:
        return web.json_response(body)

    return handle


def status(code: int) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "as told"}}, status=code)

    return handle


async def hang(_: web.Request) -> web.Response:
    await asyncio.sleep(30)
    raise AssertionError("nobody waited for less than 30 s")


async def truncated_json(_: web.Request) -> web.Response:
    return web.Response(body=b'{"meta_info": {"finish', content_type="application/json")


async def disconnect(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


class Worker:
    """An SGLang worker that answers its n-th /generate with its n-th handler (the last one from then on)."""

    def __init__(self, *handlers: Handler):
        self.handlers = handlers
        self.payloads: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.aborted: list[str] = []
        self.arrived = asyncio.Event()
        self.app = web.Application()
        self.app.router.add_post("/generate", self._generate)
        self.app.router.add_post("/abort_request", self._abort)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.payloads.append(json.loads(await request.read()))
        self.headers.append(request.headers)
        self.arrived.set()
        return await self.handlers[min(len(self.payloads), len(self.handlers)) - 1](request)

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        return web.Response()


async def ask(
    worker: Worker, sampling: Sampling | None = None, session: str | None = None, **options: Any
) -> Completion:
    async with serve_here(worker.app) as url, SGLangPolicy(url, backoff_s=0.01, **options) as policy:
        return await policy.generate(PROMPT, sampling or Sampling(max_new_tokens=4), session)


async def failure(worker: Worker, **options: Any) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        await ask(worker, **options)
    return caught.value


async def test_request_and_reply() -> None:
    worker = Worker(reply([9, 3], logprobs=[-0.25, 0]))
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=20, max_new_tokens=4, stop_token_ids=(3,), seed=11)
    completion = await ask(worker, sampling, session="s1")
    assert completion == Completion((9, 3), (-0.25, 0.0), "stop", "7", 2)
    (payload,) = worker.payloads
    assert len(payload.pop("rid")) == 32
    assert payload == {
        "input_ids": PROMPT,
        "return_logprob": True,
        "sampling_params": {
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 20,
            "max_new_tokens": 4,
            "stop_token_ids": [3],
            "sampling_seed": 11,
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
        },
    }
    assert worker.headers[0]["X-SMG-Routing-Key"] == "s1"


@pytest.mark.parametrize("first", [status(500), status(503), disconnect])
async def test_server_errors_and_lost_connections_are_retried_under_a_new_rid(first: Handler) -> None:
    worker = Worker(first, reply([1]))
    assert (await ask(worker)).token_ids == (1,)
    first_rid, second_rid = (payload["rid"] for payload in worker.payloads)
    assert first_rid != second_rid
    assert worker.aborted == [first_rid]


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
async def test_whoever_takes_no_calls_now_is_asked_again_and_not_for_ever(code: int) -> None:
    """A full queue of SGLang's router answers 429, and 408 when the call waited in it for too long."""
    worker = Worker(status(code))
    assert (await failure(worker, max_retries=1)).kind == ("engine" if code == 500 else "unavailable")
    assert len(worker.payloads) == 2


@pytest.mark.parametrize(
    ("prompt", "sampling"), [([], Sampling()), ([1, -1], Sampling()), ([1], Sampling(max_new_tokens=0))]
)
async def test_a_prompt_that_would_end_a_worker_is_not_sent(prompt: list[int], sampling: Sampling) -> None:
    worker = Worker(reply([1]))
    async with serve_here(worker.app) as url, SGLangPolicy(url) as policy:
        with pytest.raises(PolicyError) as caught:
            await policy.generate(prompt, sampling)
    assert caught.value.kind == "bad_request"
    assert worker.payloads == []


@pytest.mark.parametrize(
    "text",
    [
        "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
        "This model's maximum context length is 8192 tokens.",
        "input_ids: 9000 prompt tokens and max_new_tokens 4 exceed the context of 8192; shorten the prompt",
    ],
)
async def test_a_prompt_beyond_the_context_has_a_name_of_its_own(text: str) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": text}}, status=400)

    assert (await failure(Worker(refuse))).kind == "too_long"


async def test_the_key_of_a_server_is_read_from_a_file(tmp_path: Path) -> None:
    async def check(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer open sesame":
            return web.json_response({}, status=401)
        return await reply([1])(request)

    key = tmp_path / "key"
    async with serve_here(Worker(check, check, check).app) as url:
        async with SGLangPolicy(url, api_key_file=key) as policy:
            with pytest.raises(PolicyError, match="write the key into it"):
                await policy.generate(PROMPT, Sampling())
            key.write_text("open sesame\n")
            assert (await policy.generate(PROMPT, Sampling(max_new_tokens=1))).token_ids == (1,)
        async with SGLangPolicy(url) as without:
            with pytest.raises(PolicyError, match="401"):
                await without.generate(PROMPT, Sampling())


@pytest.mark.parametrize("code", [400, 401, 404, 413, 422])
async def test_client_errors_fail_at_once(code: int) -> None:
    worker = Worker(status(code))
    error = await failure(worker)
    assert error.kind == "bad_request"
    assert f"HTTP {code}" in str(error)
    assert "as told" in str(error)
    assert len(worker.payloads) == 1
    assert worker.aborted == []


@pytest.mark.parametrize(
    ("handler", "kind", "says"),
    [
        (truncated_json, "bad_reply", "not JSON"),
        (reply([1, 2], completion_tokens=3), "bad_reply", "completion_tokens is 3"),
        (reply([1, 2, 3, 4, 5], "length"), "bad_reply", "max_new_tokens was 4"),
        (reply([]), "bad_reply", "no tokens"),
        (reply(["1"]), "bad_reply", "token id"),
        (reply([1.0]), "bad_reply", "token id"),
        (reply([-1]), "bad_reply", "token id"),
        (reply([1], logprobs=[float("nan")]), "bad_reply", "finite"),
        (reply([1], logprobs=[float("-inf")]), "bad_reply", "finite"),
        (reply([1], logprobs=[None]), "bad_reply", "lacks a field"),
        (reply([1], "tired"), "bad_reply", "tired"),
        (reply([1], finish_reason=None), "bad_reply", "finish_reason"),
        (reply([1], output_token_logprobs=None), "bad_reply", "output_token_logprobs"),
    ],
)
async def test_malformed_replies_fail_at_once(handler: Handler, kind: str, says: str) -> None:
    worker = Worker(handler)
    error = await failure(worker)
    assert error.kind == kind
    assert says in str(error)
    assert len(worker.payloads) == 1


async def test_a_prompt_or_a_budget_that_a_server_has_cut_is_told() -> None:
    """SGLang takes both, and of its context keeps two tokens."""
    cut = await failure(Worker(reply([1], prompt_tokens=2)))
    assert (cut.kind, "of a prompt of 3 tokens it read 2" in str(cut)) == ("too_long", True)
    full = await failure(Worker(reply([1], "length", prompt_tokens=3)))
    assert (full.kind, "context of 4 tokens is too short for 4" in str(full)) == ("too_long", True)
    assert (await ask(Worker(reply([1, 2], "length")))).finish_reason == "length"
    assert (await ask(Worker(reply([], "abort", prompt_tokens=1)))).finish_reason == "abort"


async def test_abort_before_the_first_token_is_a_completion() -> None:
    completion = await ask(Worker(reply([], "abort", output_token_logprobs=None)))
    assert completion.finish_reason == "abort"
    assert completion.token_ids == ()


async def test_timeout_aborts_on_the_worker() -> None:
    worker = Worker(hang)
    assert (await failure(worker, timeout_s=0.2)).kind == "timeout"
    assert worker.aborted == [worker.payloads[0]["rid"]]


async def test_close_waits_for_an_abort_whose_caller_was_cancelled_twice() -> None:
    worker = Worker(hang)
    async with serve_here(worker.app) as url:
        policy = SGLangPolicy(url)
        call = asyncio.create_task(policy.generate(PROMPT, Sampling()))
        await worker.arrived.wait()
        call.cancel()
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await policy.close()
        assert worker.aborted == [worker.payloads[0]["rid"]]


async def test_aborts_reach_every_worker_of_a_router_and_a_dead_worker_stops_none() -> None:
    """SGLang's router has /workers and no /abort_request; the list is cached until an abort fails."""
    asked = 0
    front, worker = Worker(hang), Worker(hang)
    async with serve_here(worker.app) as worker_url:
        workers = [{"id": "a", "url": f"{worker_url}/"}]

        async def list_workers(_: web.Request) -> web.Response:
            nonlocal asked
            asked += 1
            return web.json_response({"workers": workers})

        router = web.Application()
        router.router.add_post("/generate", front._generate)
        router.router.add_get("/workers", list_workers)
        async with serve_here(router) as url, SGLangPolicy(url, timeout_s=0.1) as policy:

            async def time_out() -> None:
                with pytest.raises(PolicyError):
                    await policy.generate(PROMPT, Sampling())

            await time_out()
            await time_out()
            assert asked == 1
            policy._workers = [f"http://127.0.0.1:{unused_port()}", worker_url]
            await time_out()
            await time_out()
            assert asked == 2
    assert worker.aborted == [payload["rid"] for payload in front.payloads]
    assert len(worker.aborted) == 4


async def test_more_calls_at_once_than_a_default_connection_pool() -> None:
    together = asyncio.Barrier(120)

    async def wait_for_all(request: web.Request) -> web.StreamResponse:
        await together.wait()
        return await reply([1])(request)

    worker = Worker(wait_for_all)
    async with serve_here(worker.app) as url, SGLangPolicy(url, timeout_s=10, max_retries=0) as policy:
        completions = await asyncio.gather(*(policy.generate(PROMPT, Sampling()) for _ in range(120)))
    assert len(completions) == 120


async def test_a_connection_that_an_engine_may_have_closed_is_not_used_again() -> None:
    """SGLang's and vLLM's close one that idles for 5 s. A loop that was busy for longer lost its next call."""
    async with SGLangPolicy("http://there") as policy:
        connector: Any = policy._http().connector
        assert connector._keepalive_timeout < 5
