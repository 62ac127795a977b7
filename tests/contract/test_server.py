"""The embedded server: what clients and slime's rollout send on SGLang's wire, and others on vLLM's, what they get, and
every refusal."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from aiohttp.test_utils import TestClient, TestServer

from core.engine import weights
from core.engine.engine import Engine
from core.engine.policy import EmbeddedPolicy
from core.engine.server import Server, main

CONTEXT = 2048
LONG = {"input_ids": [1], "sampling_params": {"max_new_tokens": CONTEXT - 1}, "return_logprob": True}


class Characters:
    """A tokenizer of one id per character."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return "".join(chr(i) for i in ids)


@pytest.fixture
def engine(tiny_model: Path) -> Engine:
    return Engine.from_pretrained(str(tiny_model), max_model_len=CONTEXT, kv_tokens=4 * CONTEXT)


@pytest.fixture
async def client(engine: Engine, request: pytest.FixtureRequest) -> AsyncIterator[TestClient[Any, Any]]:
    server = Server(EmbeddedPolicy(engine, threaded=True), "tiny", tokenizer=getattr(request, "param", None))
    client = TestClient(TestServer(server.app()), timeout=aiohttp.ClientTimeout(total=30))
    await client.server.start_server(shutdown_timeout=0)
    async with client:
        yield client


Client = TestClient[Any, Any]


async def post(client: Client, path: str, body: Any, status: int = 200) -> Any:
    """Post `body`; return the JSON of the reply, or the message of the error."""
    async with client.post(path, json=body) as response:
        assert response.status == status, await response.text()
        reply = await response.json() if response.content_type == "application/json" else None
    return reply if status == 200 else reply["error"]["message"]


async def get(client: Client, path: str) -> Any:
    async with client.get(path) as response:
        assert response.status == 200, await response.text()
        return await response.json() if response.content_type == "application/json" else None


async def generate(client: Client, **body: Any) -> Any:
    return await post(client, "/generate", body)


async def running(client: Client, number: int) -> None:
    """Wait until the server says that `number` requests run."""
    async with asyncio.timeout(20):
        while True:
            (load,) = (await get(client, "/v1/loads?include=core"))["loads"]
            if load["num_running_reqs"] + load["num_waiting_reqs"] == number:
                return
            await asyncio.sleep(0.005)


async def test_a_reply_has_what_slime_reads(client: Client) -> None:
    slime_params = {
        "temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 5, "stop": None, "stop_token_ids": None,
        "skip_special_tokens": False, "no_stop_trim": True, "spaces_between_special_tokens": False,
        "repetition_penalty": 1.0, "sampling_seed": 4,
    }  # fmt: skip
    reply = await generate(client, input_ids=[1, 2, 3], sampling_params=slime_params, return_logprob=True, rid="r1")
    meta = reply["meta_info"]
    assert meta["id"] == "r1"
    assert meta["finish_reason"] == {"type": "length"}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["weight_version"]) == (3, 5, "0")
    assert reply["output_ids"] == [token_id for _, token_id, _ in meta["output_token_logprobs"]]
    assert all(logprob < 0 for logprob, _, _ in meta["output_token_logprobs"])
    silent = await generate(client, input_ids=[1], sampling_params={"max_new_tokens": 2})
    assert "output_token_logprobs" not in silent["meta_info"]


async def test_what_sglangs_router_makes_of_a_call_is_taken(client: Client) -> None:
    """The body that sglang-router 0.3.2 sent on for one of SGLangPolicy's."""
    switches = "return_text_in_logprobs stream return_hidden_states background no_logs return_bytes return_entropy"
    params = {
        "temperature": 0.5, "max_new_tokens": 4, "top_p": 1.0, "top_k": -1, "skip_special_tokens": False,
        "stop_token_ids": [], "no_stop_trim": True, "sampling_seed": 3,
    }  # fmt: skip
    body = {"model": None, "input_ids": [5, 6, 7], "sampling_params": params, "return_logprob": True, "rid": "abc"}
    reply = await generate(client, **body, **dict.fromkeys(switches.split(), False), log_metrics=True)
    assert len(reply["output_ids"]) == 4


async def test_two_servers_answer_the_same_request_without_a_seed_differently(tiny_model: Path) -> None:
    """Behind one router they would give the rollouts of a group in equal pairs."""
    params = {"max_new_tokens": 16}
    replies = []
    for _ in range(2):
        engine = Engine.from_pretrained(str(tiny_model), max_model_len=CONTEXT, kv_tokens=CONTEXT)
        server = Server(EmbeddedPolicy(engine, threaded=True), "tiny")
        async with TestClient(TestServer(server.app())) as client:
            replies.append((await generate(client, input_ids=[1, 2], sampling_params=params))["output_ids"])
            seeded = await generate(client, input_ids=[1, 2], sampling_params={**params, "sampling_seed": 7})
            replies.append(seeded["output_ids"])
    assert replies[0] != replies[2]
    assert replies[1] == replies[3]


async def test_a_stream_is_one_event_and_done(client: Client) -> None:
    async with client.post(
        "/generate", json={"input_ids": [1], "sampling_params": {"max_new_tokens": 2}, "stream": True}
    ) as response:
        assert response.content_type == "text/event-stream"
        events = re.findall(r"data: (.*)\n\n", await response.text())
    assert len(json.loads(events[0])["output_ids"]) == 2
    assert events[1:] == ["[DONE]"]


@pytest.mark.parametrize("client", [Characters()], indirect=True)
async def test_text_in_and_out_with_a_tokenizer(client: Client) -> None:
    params = {"max_new_tokens": 4, "temperature": 0}
    from_text = await generate(client, text="ab", sampling_params=params)
    from_ids = await generate(client, input_ids=[97, 98], sampling_params=params)
    assert from_text["output_ids"] == from_ids["output_ids"]
    assert from_text["text"] == "".join(map(chr, from_ids["output_ids"]))


@pytest.mark.parametrize("client", [Characters()], indirect=True)
async def test_what_ended_a_completion_is_cut_from_the_text_and_named_on_vllms_wire(
    client: Client, engine: Engine
) -> None:
    engine.decode = lambda ids: Characters().decode(ids, True)
    params = {"max_new_tokens": 20, "sampling_seed": 3}
    free = (await generate(client, input_ids=[1], sampling_params=params))["output_ids"]
    said, stop = "".join(map(chr, free)), "".join(map(chr, free[5:7]))
    until = said.index(stop)
    for keeps, text in ((False, said[:until]), (True, said[: until + 2])):
        ask = {**params, "stop": ["never", stop], "no_stop_trim": keeps}
        reply = await generate(client, input_ids=[1], sampling_params=ask)
        assert (reply["text"], reply["output_ids"]) == (text, free[: until + 2])
    for ends, reason in (({"stop": ["never", stop]}, stop), ({"stop_token_ids": [free[6]]}, free[6]), ({}, None)):
        body = {"token_ids": [1], "sampling_params": {"max_tokens": 20, "seed": 3, **ends}}
        (choice,) = (await post(client, "/inference/v1/generate", body))["choices"]
        assert (choice["stop_reason"], choice["finish_reason"]) == (reason, "stop" if ends else "length")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "input_ids: give either"),
        ({"input_ids": [1], "text": "a"}, "input_ids: give either"),
        ({"text": "a"}, "text: tiny has no tokenizer"),
        ({"input_ids": [128]}, "input_ids: ids must lie in"),
        ({"input_ids": [[1], [2]]}, "input_ids.0"),
        ({"input_ids": [True]}, "input_ids.0"),
        ({"input_ids": [1] * CONTEXT}, f"exceed the context of {CONTEXT}"),
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": CONTEXT}}, "max_new_tokens"),
        ({"input_ids": [1], "sampling_params": {"temperature": "hot"}}, "sampling_params.temperature"),
        ({"input_ids": [1], "sampling_params": {"temperature": -1}}, "temperature"),
        ({"input_ids": [1], "sampling_params": {"top_p": 0}}, "top_p"),
        ({"input_ids": [1], "sampling_params": {"stop_token_ids": 7}}, "sampling_params.stop_token_ids"),
        ({"input_ids": [1], "sampling_params": {"stop": ["</s>"]}}, "stop: this engine has no tokenizer"),
        ({"input_ids": [1], "sampling_params": {"n": 2}}, "sampling_params.n: not implemented"),
        ({"input_ids": [1], "image_data": "x"}, "image_data: not implemented"),
        ({"input_ids": [1], "logprob_start_len": 0}, "logprob_start_len"),
        ([1], "body"),
    ],
)
async def test_a_bad_request_names_its_field(client: Client, body: Any, says: str) -> None:
    assert says in await post(client, "/generate", body, 400)


async def test_a_body_that_is_not_json(client: Client) -> None:
    async with client.post(
        "/generate", data=b'{"input_ids": [1', headers={"Content-Type": "application/json"}
    ) as response:
        assert response.status == 400
        assert "JSON" in (await response.json())["error"]["message"]


async def test_a_prompt_beyond_aiohttps_default_body_limit_arrives(client: Client) -> None:
    assert "360000 prompt tokens" in await post(client, "/generate", {"input_ids": [1] * 360_000}, 400)


@pytest.mark.parametrize(
    "params", [{"top_k": 9_223_372_036_854_775_808}, {"temperature": 1e-40}, {"temperature": 1e300}]
)
async def test_no_sampling_parameter_of_one_request_harms_the_others(client: Client, params: dict[str, Any]) -> None:
    ask = {"input_ids": [1, 2], "return_logprob": True}
    sampled = [{"max_new_tokens": 8}, {"max_new_tokens": 8, **params}, {"max_new_tokens": 8, "top_k": 3}]
    replies = await asyncio.gather(*(generate(client, **ask, sampling_params=p) for p in sampled))
    for reply in replies:
        assert all(math.isfinite(logprob) for logprob, _, _ in reply["meta_info"]["output_token_logprobs"])


async def test_weights_that_are_not_numbers_are_told_and_never_sampled_from(client: Client, engine: Engine) -> None:
    ask = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 4}, "return_logprob": True}
    good = {name: p.detach().clone() for name, p in engine.model.named_parameters()}
    engine.set_weights({name: torch.full_like(p, math.nan) for name, p in good.items()})
    assert "not finite" in await post(client, "/generate", ask, 500)
    engine.set_weights(good)
    await post(client, "/generate", ask)


WIRE = "/inference/v1/generate"


async def test_vllms_wire_has_ids_and_a_log_prob_for_each(client: Client) -> None:
    ask = {"token_ids": [1, 2], "sampling_params": {"max_tokens": 4, "seed": 3, "logprobs": 1}, "model": "tiny"}
    reply = await post(client, WIRE, {**ask, "request_id": "r1", "return_token_ids": True, "cache_salt": "s"})
    sampling = {"max_new_tokens": 4, "sampling_seed": 3}
    same = await generate(client, input_ids=[1, 2], sampling_params=sampling, return_logprob=True)
    (choice,) = reply["choices"]
    ids = same["output_ids"]
    assert (reply["request_id"], reply["prompt_token_ids"], choice["token_ids"]) == ("r1", [1, 2], ids)
    logged = [(entry["token"], entry["token_id"], entry["logprob"]) for entry in choice["logprobs"]["content"]]
    assert logged == [(f"token_id:{i}", i, logprob) for logprob, i, _ in same["meta_info"]["output_token_logprobs"]]
    assert choice["finish_reason"] == "length"
    assert choice["weight_versions"] == [{"version": "0", "start": 0, "end": 4}]
    assert reply["usage"]["total_tokens"] == 6
    plain = await post(client, WIRE, {"token_ids": [1, 2], "sampling_params": {"max_tokens": 1}})
    assert (plain["prompt_token_ids"], plain["choices"][0]["logprobs"]) == (None, None)


async def test_vllms_wire_without_a_limit_fills_the_context(client: Client) -> None:
    prompt = [1] * (CONTEXT - 3)
    for params in ({}, {"max_tokens": 100}):
        choice = (await post(client, WIRE, {"token_ids": prompt, "sampling_params": params}))["choices"][0]
        assert (len(choice["token_ids"]), choice["finish_reason"]) == (3, "length")


async def test_vllms_wire_streams_one_event(client: Client) -> None:
    ask = {"token_ids": [1], "sampling_params": {"max_tokens": 2}, "stream": True}
    for options, tokens in ((None, None), ({"include_usage": True}, 3)):
        async with client.post(WIRE, json={**ask, "stream_options": options}) as response:
            assert response.content_type == "text/event-stream"
            events = re.findall(r"data: (.*)\n\n", await response.text())
        reply = json.loads(events[0])
        assert len(reply["choices"][0]["token_ids"]) == 2
        assert (reply["usage"] or {}).get("total_tokens") == tokens
        assert events[1:] == ["[DONE]"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [128]}, "ids must lie in"),
        ({"token_ids": [1] * CONTEXT}, f"token_ids: the prompt of {CONTEXT} tokens leaves no room below the maximum"),
        ({"token_ids": [1], "sampling_params": {"max_tokens": 0}}, "sampling_params.max_tokens"),
        ({"token_ids": [1], "sampling_params": {"logprobs": 5}}, "sampling_params.logprobs"),
        ({"token_ids": [1], "sampling_params": {"prompt_logprobs": 0}}, "sampling_params.prompt_logprobs"),
        ({"token_ids": [1], "sampling_params": {"prompt_logprobs": 1}}, "sampling_params.prompt_logprobs"),
        ({"token_ids": [1], "sampling_params": {"n": 2}}, "sampling_params.n: not implemented"),
        ({"token_ids": [1], "features": {"mm_hashes": {}}}, "features: not implemented"),
        ({"token_ids": [1], "output_mode": "text"}, "output_mode"),
    ],
)
async def test_a_bad_request_on_vllms_wire_names_its_field(client: Client, body: Any, says: str) -> None:
    assert says in await post(client, WIRE, body, 400)


async def test_models_are_listed_with_their_context_and_others_are_refused(client: Client, engine: Engine) -> None:
    (model,) = (await get(client, "/v1/models"))["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("tiny", "model", CONTEXT)
    assert "'tiny'" in await post(client, WIRE, {"token_ids": [1], "model": "gpt"}, 404)


class SlowCharacters(Characters):
    """Encodes a text when it is told to."""

    may_encode = threading.Event()

    def encode(self, text: str) -> list[int]:
        assert self.may_encode.wait(20)
        return super().encode(text)


@pytest.mark.parametrize("client", [SlowCharacters()], indirect=True)
async def test_others_are_served_while_a_text_is_tokenized(client: Client) -> None:
    text = asyncio.create_task(generate(client, text="ab", sampling_params={"max_new_tokens": 2}))
    await generate(client, input_ids=[1], sampling_params={"max_new_tokens": 2})
    assert not text.done()
    SlowCharacters.may_encode.set()
    assert (await text)["meta_info"]["prompt_tokens"] == 2


@pytest.mark.parametrize("client", [Characters()], indirect=True)
async def test_a_body_beyond_what_the_context_could_hold_is_refused_by_its_size(client: Client) -> None:
    assert "more than 1179648 bytes" in await post(client, "/generate", {"text": "a" * 1_200_000}, 413)


async def test_new_weights_come_from_folders_alone_and_from_below_the_root(
    engine: Engine, tiny_model: Path, other_tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "inside").symlink_to(other_tiny_model)
    (tmp_path / "weights").mkdir()
    shutil.copytree(other_tiny_model, tmp_path / "weights" / "v1")
    server = Server(EmbeddedPolicy(engine, threaded=True), "tiny", weights_root=tmp_path / "weights")
    async with TestClient(TestServer(server.app())) as client:
        for path in (tiny_model, tmp_path / "inside", f"{tmp_path}/weights/../inside", "some/hub-id", "\0"):
            answer = await post(client, "/update_weights_from_disk", {"model_path": str(path)}, 400)
            assert "--weights-root" in answer or "null" in answer
        await post(client, "/update_weights_from_disk", {"model_path": str(tmp_path / "weights" / "v1")})


@pytest.mark.parametrize("order", [{"rid": "long"}, {"abort_all": True}])
async def test_an_aborted_request_returns_what_it_has(client: Client, order: dict[str, Any]) -> None:
    call = asyncio.create_task(generate(client, rid="long", **LONG))
    await running(client, 1)
    await post(client, "/abort_request", order)
    meta = (await call)["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert meta["completion_tokens"] == len(meta["output_token_logprobs"]) < CONTEXT - 1
    await running(client, 0)


async def test_aborting_an_unknown_rid_is_harmless_and_no_rid_is_an_error(client: Client) -> None:
    await post(client, "/abort_request", {"rid": "gone"})
    await post(client, "/abort_request", {}, 400)


async def test_a_client_that_goes_away_aborts_its_request(client: Client, engine: Engine) -> None:
    call = asyncio.create_task(generate(client, **LONG))
    await running(client, 1)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await running(client, 0)
    assert engine.stats().generated_tokens < CONTEXT - 1


async def test_a_rid_in_use_is_refused(client: Client) -> None:
    call = asyncio.create_task(generate(client, rid="twice", **LONG))
    await running(client, 1)
    assert "twice" in await post(client, "/generate", {"rid": "twice", **LONG}, 400)
    await running(client, 1)
    call.cancel()


async def test_update_weights_from_disk(client: Client, tiny_model: Path, other_tiny_model: Path) -> None:
    ask = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
    before = await generate(client, **ask)
    missing = str(tiny_model / "none")
    assert missing in await post(client, "/update_weights_from_disk", {"model_path": missing}, 400)
    assert (await generate(client, **ask))["output_ids"] == before["output_ids"]

    update = {"model_path": str(other_tiny_model), "weight_version": "v2", "load_format": None}
    assert (await post(client, "/update_weights_from_disk", update))["success"] is True
    after = await generate(client, **ask)
    assert after["output_ids"] != before["output_ids"]
    assert after["meta_info"]["weight_version"] == "v2"
    assert after["meta_info"]["cached_tokens"] == 0
    assert (await get(client, "/get_weight_version"))["weight_version"] == "v2"
    assert (await get(client, "/model_info"))["model_path"] == str(other_tiny_model)


async def test_requests_go_on_while_weights_are_read(
    client: Client, other_tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, may_read = weights.read, threading.Event()

    def read_when_allowed(*args: Any) -> Any:
        assert may_read.wait(timeout=20)
        return read(*args)

    monkeypatch.setattr(weights, "read", read_when_allowed)
    update = {"model_path": str(other_tiny_model), "weight_version": "v2"}
    updating = asyncio.create_task(post(client, "/update_weights_from_disk", update))
    ask = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 8}}
    versions = [(await generate(client, **ask))["meta_info"]["weight_version"] for _ in range(2)]
    assert not updating.done()
    may_read.set()
    await updating
    assert versions == ["0", "0"]
    assert (await generate(client, **ask))["meta_info"]["weight_version"] == "v2"


async def test_a_pause_aborts_what_runs_and_holds_what_comes(client: Client, other_tiny_model: Path) -> None:
    """slime's update of weights: pause, flush, update, continue."""
    call = asyncio.create_task(generate(client, **LONG))
    await running(client, 1)
    await post(client, "/pause_generation", {})
    assert (await call)["meta_info"]["finish_reason"]["type"] == "abort"

    held = asyncio.create_task(generate(client, input_ids=[1], sampling_params={"max_new_tokens": 2}))
    await get(client, "/flush_cache")
    update = {"model_path": str(other_tiny_model), "weight_version": "1"}
    await post(client, "/update_weights_from_disk", update)
    await get(client, "/health_generate")
    assert not held.done()
    await post(client, "/continue_generation", {})
    assert (await held)["meta_info"]["weight_version"] == "1"


async def test_other_ways_to_pause_are_refused(client: Client) -> None:
    assert "mode" in await post(client, "/pause_generation", {"mode": "in_place"}, 400)
    await generate(client, input_ids=[1], sampling_params={"max_new_tokens": 2})


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/release_memory_occupation", "--offload-rollout"),
        ("/resume_memory_occupation", "--offload-rollout"),
        ("/init_weights_update_group", "--update-weight-transport disk"),
        ("/update_weights_from_distributed", "--update-weight-transport disk"),
        ("/update_weights_from_tensor", "--update-weight-transport disk"),
        ("/pull_weights", "--update-weight-mode full"),
    ],
)
async def test_what_only_gpus_can_do_is_refused_with_the_flag_to_set(client: Client, path: str, says: str) -> None:
    assert says in await post(client, path, {}, 501)


async def test_flush_cache(client: Client) -> None:
    ask = {"input_ids": list(range(64)), "sampling_params": {"max_new_tokens": 1}}
    await generate(client, **ask)
    assert (await generate(client, **ask))["meta_info"]["cached_tokens"] > 0
    for flush in (get(client, "/flush_cache"), post(client, "/flush_cache", {})):
        await flush
        assert (await generate(client, **ask))["meta_info"]["cached_tokens"] == 0


async def test_health_and_information(client: Client) -> None:
    for path in ("/health", "/health_generate"):
        await get(client, path)
    for path in ("/server_info", "/get_server_info", "/model_info", "/get_model_info"):
        info = await get(client, path)
        assert info["context_length"] == CONTEXT
        # What slime's discovery of external engines reads, and what it compares with its own flags.
        assert [info[f"{name}_size"] for name in ("tp", "pp", "dp", "ep", "moe_dp")] == [1] * 5
        assert (info["disaggregation_mode"], info["enable_memory_saver"]) == ("null", False)
    (worker,) = (await get(client, "/workers"))["workers"]
    assert worker["url"] == str(client.make_url("/")).rstrip("/")


async def test_health_generate_fails_when_the_engine_fails(client: Client, engine: Engine) -> None:
    def broken() -> Any:
        raise RuntimeError("out of memory")

    works = engine.step
    engine.step = broken  # type: ignore[method-assign]
    for path in ("/health_generate", "/health", "/health"):  # pools and routers ask the second
        await get(client, "/flush_cache")
        async with client.get(path) as response:
            assert response.status == 500
            assert "out of memory" in (await response.json())["error"]["message"]
    engine.step = works  # type: ignore[method-assign]
    await get(client, "/health")


def test_a_busy_port_is_named_with_the_fix(tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as caught:
            main(["--model", str(tiny_model), "--port", str(port)])
    assert (
        caught.value.code == f"port {port} on 127.0.0.1 is in use: stop the other server, or choose another with --port"
    )


def test_the_command_serves_and_stops(tiny_model: Path) -> None:
    command = [sys.executable, "-m", "core.engine.server", "--model", str(tiny_model), "--port", "0", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    body = json.dumps({"input_ids": [1], "sampling_params": {"max_new_tokens": 4}}).encode()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert address is not None, line
            ask = urllib.request.Request(f"{address[0]}/generate", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(ask, timeout=60) as reply:
                assert len(json.load(reply)["output_ids"]) == 4
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()
