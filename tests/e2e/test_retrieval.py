"""The retrieval service as a process: killed and restarted while clients keep asking, and read page by page."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from core.policy.server_process import find_free_port
from core.retrieval.client import RetrievalClient
from core.tools.base import Query, ToolContext
from core.tools.search import Search
from tests.unit.retrieval.conftest import question, write_corpus

REPOSITORY = Path(__file__).resolve().parents[2]
ROWS, CLIENTS = 300, 32


@contextmanager
def service(corpus: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "core.retrieval", "--corpus", str(corpus), "--port", str(port)]
    with subprocess.Popen([*command, "--threads", "1"], cwd=REPOSITORY) as process:
        try:
            yield process
        finally:
            process.kill()


async def health(url: str) -> dict[str, object]:
    """Of a service that may still start."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            try:
                async with session.get(f"{url}/health") as reply:
                    about: dict[str, object] = await reply.json()
                    return about
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.1)


@pytest.mark.e2e
async def test_a_service_killed_and_restarted_lets_every_client_go_on(tmp_path: Path):
    """SIGKILL under load, seconds without a service, the same port again: no error, no wrong answer."""
    corpus, port = write_corpus(tmp_path / "corpus.jsonl", ROWS), find_free_port("127.0.0.1")
    url = f"http://127.0.0.1:{port}"
    client = RetrievalClient(url=f"{url}/retrieve")
    restarted = asyncio.Event()
    answers: list[int] = []

    async def keep_asking(number: int) -> None:
        """Until the service is back, and three times more."""
        left = 3
        while left:
            left -= restarted.is_set()
            row = (number * 37 + len(answers)) % ROWS
            (hits,) = await client.search([question(row)], 3)
            assert hits[0].document.id == f"p{row}"
            assert len(hits) == 3
            answers.append(row)

    with service(corpus, port) as first:
        await health(url)
        clients = asyncio.gather(*(keep_asking(number) for number in range(CLIENTS)))
        async with asyncio.timeout(60):
            while len(answers) < 3 * CLIENTS and not clients.done():
                await asyncio.sleep(0.01)
        first.kill()
    assert not clients.done()
    with service(corpus, port):
        assert (await health(url))["rows"] == ROWS
        restarted.set()
        async with asyncio.timeout(90):
            await clients
        after = (await health(url))["answered"]
    # Of the three that each client still asked for, all but one cannot have been under way before.
    assert isinstance(after, int)
    assert after >= 2 * CLIENTS

    async def nobody(role: str, message: str) -> str:
        raise AssertionError("not asked")

    gone = Search(url=client.url, max_retries=1, backoff_s=0.01)
    assert (await gone.call(Query(query="fox"), ToolContext(nobody))).status == "error"


@pytest.mark.e2e
def test_a_bad_corpus_ends_the_command_with_a_message(tmp_path: Path):
    (tmp_path / "bad.jsonl").write_text('{"id": "1", "text": "no contents"}\n')
    command = [sys.executable, "-m", "core.retrieval", "--corpus", str(tmp_path / "bad.jsonl"), "--port", "0"]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "bad.jsonl, line 1: Object missing required field `contents`" in ended.stderr
    assert "Traceback" not in ended.stderr
