"""VLLMPolicy against a loopback server that answers with what a real vLLM 0.32.0 answered (vllm_replies.json).

tests/optional/vllm_cpu/record.py recorded it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from core.policy.base import PolicyError
from core.policy.servers import make_server_policy
from core.policy.sglang import SGLangPolicy
from core.policy.vllm import VLLMPolicy
from core.types import Completion, Sampling
from tests.kit import serve_here

REPLIES = json.loads(Path(__file__).with_name("vllm_replies.json").read_text())
"""Name -> {path, status, reply}: what was asked and answered; `completion` has the body of the call too."""
SAMPLING = Sampling(max_new_tokens=3, seed=1)


class Recorded:
    """A vLLM that knows the recorded answers alone: each by its path, the last one again and again."""

    def __init__(self, *names: str, **changes: Any):
        self.answers = [REPLIES[name] for name in names]
        self.changes = changes
        self.requests: list[tuple[str, Any, Any]] = []
        self.arrived, self.left = asyncio.Event(), asyncio.Event()
        self.hangs = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.path_qs, await request.json(), request.headers))
        self.arrived.set()
        if self.hangs:
            try:
                await asyncio.sleep(30)
            finally:
                self.left.set()
        asked = [answer for answer in self.answers if answer["path"] == request.path_qs]
        if not asked:
            return web.json_response({"detail": "Not Found"}, status=404)
        if len(asked) > 1:
            self.answers.remove(asked[0])
        reply = asked[0]["reply"]
        if "choices" in reply:
            (choice,) = reply["choices"]
            reply = {**reply, "choices": [{**choice, **self.changes}]}
        return web.json_response(reply, status=asked[0]["status"])

    @asynccontextmanager
    async def policy(self, **options: Any) -> AsyncIterator[VLLMPolicy]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        async with serve_here(app) as url, VLLMPolicy(url, backoff_s=0.01, **options) as policy:
            yield policy


async def ask(vllm: Recorded, sampling: Sampling = SAMPLING, session: str | None = None) -> Completion:
    async with vllm.policy() as policy:
        return await policy.generate([1, 2, 3], sampling, session)


async def test_a_completion_is_what_the_server_sampled() -> None:
    vllm = Recorded("completion")
    completion = await ask(vllm, session="s1")
    (choice,) = REPLIES["completion"]["reply"]["choices"]
    assert completion.token_ids == tuple(choice["token_ids"])
    assert completion.logprobs == tuple(entry["logprob"] for entry in choice["logprobs"]["content"])
    assert (completion.finish_reason, completion.weight_version) == ("length", "default")
    path, body, headers = vllm.requests[0]
    assert (path, body) == (REPLIES["completion"]["path"], REPLIES["completion"]["body"])
    assert headers["X-Session-ID"] == "s1"


async def test_a_cached_prefix_and_a_stop_id_are_said() -> None:
    """The second of two calls with the same long prompt, with a stop id among what it samples."""
    completion = await ask(Recorded("stopped"), replace(SAMPLING, max_new_tokens=12))
    assert completion.finish_reason == "stop"
    assert (
        completion.cached_tokens == REPLIES["stopped"]["reply"]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    )


async def test_each_token_has_its_version() -> None:
    spans = [{"version": "a", "start": 0, "end": 1}, {"version": "b", "start": 1, "end": 3}]
    completion = await ask(Recorded("completion", weight_versions=spans))
    assert completion.count_versions() == [("a", 1), ("b", 2)]


async def test_a_vllm_that_knows_one_version_for_a_reply_is_believed() -> None:
    """So does the one that vime patches, which is older than the recorded one."""
    old = Recorded("completion", weight_versions=None)
    old.answers = [answer | {"reply": answer["reply"] | {"weight_version": "7"}} for answer in old.answers]
    completion = await ask(old)
    assert completion.count_versions() == [("7", 3)]


async def test_a_vllm_whose_frontend_is_in_rust_counts_no_tokens() -> None:
    """Its reply has no `usage` (rust/src/server/src/routes/inference/generate/types.rs); vime's image has it."""
    rust = Recorded("completion")
    (answer,) = rust.answers
    rust.answers = [answer | {"reply": {name: part for name, part in answer["reply"].items() if name != "usage"}}]
    completion = await ask(rust)
    assert (len(completion.token_ids), completion.cached_tokens) == (3, None)


@pytest.mark.parametrize(("name", "kind"), [("beyond_context", "too_long"), ("no_temperature", "bad_request")])
async def test_refusals_have_their_names(name: str, kind: str) -> None:
    vllm = Recorded(name)
    with pytest.raises(PolicyError, match="HTTP 4") as caught:
        await ask(vllm)
    assert caught.value.kind == kind
    assert len(vllm.requests) == 1


async def test_a_budget_beyond_the_context_is_refused_as_elsewhere() -> None:
    with pytest.raises(PolicyError, match="context of 6 tokens is too short for 9") as caught:
        await ask(Recorded("completion"), replace(SAMPLING, max_new_tokens=9))
    assert caught.value.kind == "too_long"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"token_ids": [1, 2, 3]}, "not those of its log-probs"),
        ({"logprobs": None}, "lacks a field"),
        ({"weight_versions": [{"version": "a"}]}, "lacks a field"),
        ({"finish_reason": "tired"}, "tired"),
    ],
)
async def test_replies_that_contradict_themselves_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(PolicyError, match=says) as caught:
        await ask(Recorded("completion", **changes))
    assert caught.value.kind == "bad_reply"


async def test_a_cancelled_call_closes_its_connection() -> None:
    vllm = Recorded()
    vllm.hangs = True
    async with vllm.policy() as policy:
        call = asyncio.create_task(policy.generate([1], SAMPLING))
        await vllm.arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(10):
            await vllm.left.wait()


UPDATE = ("pause", "loading", "reload", "version", "resume")


async def test_weights_are_named_only_once_they_are_whole(tmp_path: Path) -> None:
    vllm = Recorded(*UPDATE)
    async with vllm.policy() as policy:
        await policy.update_weights(tmp_path, "7", limit_s=10)
    assert [(path, body) for path, body, _ in vllm.requests] == [
        ("/pause?mode=wait", {}),
        ("/update_weight_version", {"new_version": "loading"}),
        ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path)}}),
        ("/update_weight_version", {"new_version": "7"}),
        ("/resume", {}),
    ]


async def test_a_failed_update_leaves_no_version_that_could_be_taken_for_weights(tmp_path: Path) -> None:
    """And the server takes no calls until an update succeeds."""
    vllm = Recorded("pause", "loading", "failed_reload", "resume")
    async with vllm.policy() as policy:
        with pytest.raises(PolicyError, match="HTTP"):
            await policy.update_weights(tmp_path, "7", limit_s=10)
    assert [path for path, *_ in vllm.requests] == ["/pause?mode=wait", "/update_weight_version", "/collective_rpc"]


def test_the_url_names_the_protocol() -> None:
    assert isinstance(make_server_policy("http://127.0.0.1:1"), SGLangPolicy)
    vllm = make_server_policy("vllm+http://127.0.0.1:1/")
    assert isinstance(vllm, VLLMPolicy)
    assert vllm.url == "http://127.0.0.1:1"
    with pytest.raises(ValueError, match="has no scheme"):
        make_server_policy("vllm+127.0.0.1:1")
