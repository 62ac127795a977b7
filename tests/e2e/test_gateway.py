"""The gateway as a program, on a real engine: a conversation's rows hold the log-probs that one full forward gives."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import web
from transformers import AutoModelForCausalLM

from core.runs.files import read_jsonl
from tests.e2e.conftest import REPOSITORY, environment
from tests.kit import make_sglang_reply, serve_app, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


@contextmanager
def start_gateway(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "scripts.tokentrue", "serve", "gateway", "--port", "0", *arguments]
    process = subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("serving "), line
        yield line.split()[-1], process
    finally:
        process.terminate()  # a test that a script started in the background ignores SIGINT, and so do its children
        process.wait(timeout=30)


def post(url: str, body: Any, **headers: str) -> Any:
    headers["Content-Type"] = "application/json"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def test_rows_of_a_conversation_hold_the_log_probs_of_a_full_forward(model: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    with start_gateway("--model", str(model), "--dtype", "float32", "--record", str(record)) as (url, _):
        messages: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
        for turn in range(3):
            body = {"model": "policy", "messages": messages, "max_tokens": 24, "temperature": 1.0, "seed": turn}
            reply = post(f"{url}/s/one/v1/chat/completions", body)
            messages += [reply["choices"][0]["message"], {"role": "user", "content": "go on"}]
        other = post(f"{url}/s/two/v1/messages", {"model": "policy", "messages": messages[:1], "max_tokens": 8})
        assert other["usage"]["input_tokens"] + other["usage"]["cache_read_input_tokens"] > 0
        finished = post(f"{url}/s/one/finish", {})
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(f"{url}/s/one/v1/chat/completions", {"model": "policy", "messages": messages[:1]})
        assert caught.value.code == 410

    [row] = finished["rows"]
    assert len(finished["turns"]) == 3
    assert finished["counters"].keys() <= {"verbatim", "reserialised"}
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tokens = torch.tensor([row["tokens"]])
    with torch.no_grad():
        logprobs_TV = torch.log_softmax(reference(tokens).logits[0].double(), dim=-1)
    start = len(row["tokens"]) - len(row["loss_mask"])
    expected = logprobs_TV[start - 1 : -1].gather(1, tokens[0, start:, None]).squeeze(1)
    mask = torch.tensor(row["loss_mask"], dtype=torch.bool)
    assert mask.sum() == sum(len(turn["completion"]["token_ids"]) for turn in finished["turns"])
    torch.testing.assert_close(torch.tensor(row["logprobs"]).double()[mask], expected[mask], rtol=0, atol=1e-5)
    [kept] = read_jsonl(record / "sessions.jsonl")
    assert kept == {"session": "one", **finished}


def test_a_gateway_that_is_killed_leaves_no_half_turn(model: Path, tmp_path: Path) -> None:
    """It dies while it samples. The next one gets the conversation as the client has it, and trains its own answer."""
    ids, asked = (40, 41, 42), list[Any]()

    key = tmp_path / "key"
    key.write_text("open sesame\n")

    async def generate(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer open sesame":
            return web.json_response({}, status=401)
        asked.append(await request.json())
        if len(asked) == 3:
            await asyncio.sleep(60)
        return make_sglang_reply(ids)

    app = web.Application()
    app.router.add_post("/generate", generate)
    record = tmp_path / "sessions.jsonl"
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
    body = {"model": "policy", "messages": messages, "max_tokens": 24}
    with serve_app(app) as policy_url:
        arguments = ("--model", str(model), "--policy-url", policy_url, "--policy-key-file", str(key))
        arguments += ("--record", str(tmp_path))
        with start_gateway(*arguments) as (url, process), ThreadPoolExecutor() as pool:
            post(f"{url}/s/done/v1/chat/completions", body)
            post(f"{url}/s/done/finish", {})
            reply = post(f"{url}/s/one/v1/chat/completions", body)
            messages += [reply["choices"][0]["message"], {"role": "user", "content": "go on"}]
            killed = pool.submit(post, f"{url}/s/one/v1/chat/completions", body)
            wait_until(lambda: len(asked) == 3)
            process.kill()
            with pytest.raises((urllib.error.URLError, ConnectionError)):
                killed.result()
        with record.open("a") as file:
            file.write('{"session": "torn')
        with start_gateway(*arguments) as (url, _):
            with pytest.raises(urllib.error.HTTPError, match="410"):  # it was recorded by the one that was killed
                post(f"{url}/s/done/finish", {})
            post(f"{url}/s/one/v1/chat/completions", body, **{"X-Stainless-Retry-Count": "1"})
            finished = post(f"{url}/s/one/finish", {})
    assert finished["counters"] == {"foreign": 1}
    [row] = finished["rows"]
    assert (row["loss_mask"], row["tokens"][-3:]) == ([1, 1, 1], [*ids])
    assert tuple(row["tokens"][:-3]) == tuple(asked[-1]["input_ids"])
    assert [kept["session"] for kept in read_jsonl(record)] == ["done", "one"]
