"""100 clients ask a server for `--long MINUTES`: every one gets its answer, and the memory stays flat."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from core.policy.server_process import find_free_port, start_server, wait_until_healthy
from tests import kit

CLIENTS = 100
FLAT = 1.05
"""Bounds what the memory may have at the end, by what it had after a third of the time."""

Requests = Iterator[tuple[str, dict[str, Any]]]
"""Yields the paths and bodies of requests that are sent one after the other."""


@contextmanager
def serve(words: list[str], log: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    """Yield the URL of a server and a function that returns the bytes of memory of its processes."""
    port = find_free_port("127.0.0.1")
    url = f"http://127.0.0.1:{port}"
    with start_server([sys.executable, "-m", *words, "--port", str(port)], log) as keeper:
        wait_until_healthy(url, lambda: keeper.poll() is None, 600.0, log)
        yield url, lambda: sum(map(count_bytes, kit.list_descendants(keeper.pid)))


def count_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


async def soak(
    url: str, make_requests: Callable[[random.Random], Requests], measure: Callable[[], int], seconds: float
) -> tuple[int, list[int]]:
    """Ask for some seconds; return the number of answers, and the memory after each of thirty parts of the time."""
    end, answers, sizes = time.monotonic() + seconds, 0, list[int]()

    async def ask(http: aiohttp.ClientSession, number: int) -> None:
        nonlocal answers
        rng = random.Random(number)
        while time.monotonic() < end:
            for path, body in make_requests(rng):
                async with http.post(url + path, json=body) as response:
                    assert response.status == 200, await response.text()
                    await response.read()
                answers += 1

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        clients = asyncio.gather(*(ask(http, number) for number in range(CLIENTS)))
        while not clients.done():
            await asyncio.wait([clients], timeout=seconds / 30)
            sizes.append(measure())
        await clients
    return answers, sizes


def ask_engine(rng: random.Random) -> Requests:
    ids = [rng.randrange(96) for _ in range(rng.randrange(1, 100))]
    yield "/generate", {"input_ids": ids, "sampling_params": {"max_new_tokens": rng.randrange(1, 8)}}


def ask_retrieval(rng: random.Random) -> Requests:
    yield "/retrieve", {"queries": [f"fox {rng.randrange(10**6)}" for _ in range(rng.randrange(1, 8))], "topk": 3}
    yield "/retrieve/page", {"page": rng.choice((f"fox {rng.randrange(1000)}", str(rng.randrange(10**6))))}


def ask_expert(rng: random.Random) -> Requests:
    question = f"What is {rng.randrange(10**6)} plus {rng.randrange(10**6)}?"
    yield "/v1/chat/completions", {"model": "sage", "messages": [{"role": "user", "content": question}]}


def ask_gateway(rng: random.Random) -> Requests:
    """Play a session of one to three turns, and finish it."""
    session, messages = f"/s/{rng.randrange(1 << 60)}", list[dict[str, str]]()
    for _ in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": f"hello {rng.randrange(10**6)}"})
        yield f"{session}/v1/chat/completions", {"model": "policy", "messages": [*messages], "max_tokens": 4}
        messages.append({"role": "assistant", "content": f"answer {rng.randrange(10)}"})
    yield f"{session}/finish", {}


SERVERS: dict[str, Callable[[random.Random], Requests]] = {
    "core.engine.server --model {model} --device cpu --kv-tokens 4096": ask_engine,
    "core.retrieval --corpus {corpus} --encoder hashing": ask_retrieval,
    "agentic.toolorchestra.scripted_experts": ask_expert,
    "scripts.serve_gateway --model {chat_model} --device cpu --kv-tokens 4096 --record {folder}": ask_gateway,
}


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("command", SERVERS, ids=lambda command: command.split()[0])
def test_memory_is_flat(command: str, long_s: float, model: Path, tmp_path: Path, tell: Callable[[str], None]) -> None:
    small = kit.save_model(tmp_path / "model", seed=0, num_hidden_layers=1)
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": str(i), "contents": f"fox {i}"}) + "\n" for i in range(1000)))
    words = command.format(model=small, chat_model=model, corpus=corpus, folder=tmp_path / "record").split()
    with serve(words, tmp_path / "server.log") as (url, measure):
        answers, sizes = asyncio.run(soak(url, SERVERS[command], measure, long_s))
    settled, last = sizes[len(sizes) // 3], max(sizes[-3:])
    name, mib = command.split()[0], 1 << 20
    tell(f"{name}: {CLIENTS} clients, {answers} answers, 0 lost; memory {settled / mib:.1f} to {last / mib:.1f} MiB")
    assert last <= FLAT * settled
