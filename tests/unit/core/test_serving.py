"""What a server refuses before any of its handlers runs, and what it lets through."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from core import serving
from core.serving import ListenError, is_loopback, make_app, read_api_key
from tests.kit import answer_health

JSON = {"Content-Type": "application/json"}


@asynccontextmanager
async def serve(**options: Any) -> AsyncIterator[tuple[TestClient[Any, Any], list[bytes]]]:
    """Serve an app that remembers the bodies which its handler got."""
    handled: list[bytes] = []

    async def handle(request: web.Request) -> web.Response:
        handled.append(await request.read())
        return web.json_response({})

    app = make_app(**{"max_body_bytes": 1000, **options})
    app.add_routes([web.post("/work", handle), web.get("/health", handle), web.get("/info", handle)])
    async with TestClient(TestServer(app)) as client:
        yield client, handled


async def read_error(response: Any) -> tuple[int, str]:
    return response.status, json.loads(await response.text())["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        ({"Origin": "http://evil.example"}, 403, "web pages"),
        ({"Origin": "null"}, 403, "web pages"),
        ({"Sec-Fetch-Site": "cross-site"}, 403, "web pages"),
        ({"Host": "evil.example"}, 403, "'evil.example'"),
        ({"Host": "evil.example:8000"}, 403, "127.0.0.1 and localhost"),
        ({"Host": "127.0.0.1.evil.example"}, 403, "127.0.0.1 and localhost"),
        ({"Host": "10.0.0.7"}, 403, "127.0.0.1 and localhost"),
        ({"Content-Type": "text/plain"}, 415, "send application/json"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "send application/json"),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415, "send application/json"),
    ],
)
async def test_what_a_web_page_could_send_is_refused(headers: dict[str, str], status: int, says: str) -> None:
    async with serve() as (client, handled):
        assert (await client.post("/work", data=b"{}", headers=JSON)).status == 200
        refused = await read_error(await client.post("/work", data=b"{}", headers={**JSON, **headers}))
        assert refused[0] == status
        assert says in refused[1]
        assert handled == [b"{}"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:30000", "127.8.9.1", "[::1]:9"])
async def test_every_name_of_this_machines_own_loopback_is_answered(host: str) -> None:
    async with serve() as (client, _):
        assert (await client.post("/work", json={}, headers={"Host": host})).status == 200
        assert (await client.post("/work", headers={"Host": host})).status == 200, "without a body there is no type"


async def test_a_body_that_is_too_large_is_refused_by_its_size() -> None:
    async with serve() as (client, handled):
        refused = await read_error(await client.post("/work", data=b"1" * 1001, headers=JSON))
        assert refused == (413, "body: more than 1000 bytes; send less at once")
        assert handled == []


async def test_a_body_that_does_not_arrive_is_given_up_and_others_are_served_meanwhile() -> None:
    async with serve(body_timeout_s=0.3) as (client, handled):
        reader, writer = await asyncio.open_connection(client.host, client.port)
        head = b"POST /work HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
        writer.write(head + b'{"a"')
        assert (await client.post("/work", json={})).status == 200
        async with asyncio.timeout(20):
            assert b" 408 " in await reader.readline()
        writer.close()
        assert handled == [b"{}"]


@pytest.mark.parametrize(
    "sent",
    [
        b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    ],
)
async def test_a_body_that_cannot_be_read_is_a_bad_request(sent: bytes) -> None:
    async with serve() as (client, handled):
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(b"POST /work HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + sent)
        async with asyncio.timeout(20):
            assert b" 400 " in await reader.readline()
        writer.close()
        assert handled == []


async def test_a_key_opens_every_host_and_is_asked_for_everywhere_but_for_health() -> None:
    async with serve(api_key="secret") as (client, handled):
        elsewhere = {"Host": "node-7:8000"}
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-Api-Key": ""}, {"Authorization": "secret2"}):
            for call in (client.post("/work", json={}, headers=headers), client.get("/info", headers=headers)):
                assert (await read_error(await call))[0] == 401
        assert (await client.get("/health", headers=elsewhere)).status == 200
        for key in ({"Authorization": "Bearer secret"}, {"X-Api-Key": "secret"}):
            assert (await client.post("/work", json={}, headers={**elsewhere, **key})).status == 200
        assert len(handled) == 3


async def test_what_comes_while_too_many_requests_wait_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_REQUESTS", 1)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def wait(request: web.Request) -> web.Response:
        entered.set()
        await leave.wait()
        return web.Response()

    app = make_app(max_body_bytes=1000)
    app.add_routes([web.post("/work", wait), web.get("/health", answer_health)])
    async with TestClient(TestServer(app)) as client:
        first = asyncio.create_task(client.post("/work", json={}))
        await entered.wait()
        assert (await read_error(await client.post("/work", json={})))[0] == 503
        assert (await client.get("/health")).status == 200
        leave.set()
        assert (await first).status == 200
        assert (await client.post("/work", json={})).status == 200


def test_a_server_that_other_machines_reach_needs_a_key(tmp_path: Path) -> None:
    key = tmp_path / "key"
    for host in ("127.0.0.1", "localhost", "::1"):
        assert is_loopback(host)
        assert read_api_key(host, None) is None
    for host in ("0.0.0.0", "::", "10.1.2.3", "node-7"):
        assert not is_loopback(host)
        with pytest.raises(ListenError, match=r"other machines would reach.*--api-key-file"):
            read_api_key(host, None)
    with pytest.raises(ListenError, match="No such file"):
        read_api_key("0.0.0.0", key)
    key.write_text("\n")
    with pytest.raises(ListenError, match="is empty"):
        read_api_key("127.0.0.1", key)
    key.write_text("secret\n")
    assert read_api_key("0.0.0.0", key) == "secret"


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("core.engine.server", ["--model", "nowhere"]),
        ("scripts.serve_gateway", ["--model", "nowhere"]),
        ("core.retrieval.__main__", ["--corpus", "nowhere"]),
        ("agentic.toolorchestra.scripted_experts", []),
    ],
)
def test_every_server_refuses_to_open_itself_to_other_machines_without_a_key(
    module: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = import_module(module).main([*arguments, "--host", "0.0.0.0", "--port", "0"])
    except SystemExit as error:
        status = error.code
    assert "--api-key-file" in f"{status}{capsys.readouterr().err}"


WAITING_SERVER = """
import argparse, asyncio
from aiohttp import web
from core.serving import serve_app

async def answer(request):
    print("asked", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        print("given up", flush=True)

app = web.Application()
app.router.add_get("/", answer)
serve_app(argparse.Namespace(host="127.0.0.1", port=0, api_key_file=None), lambda key: (app, "nothing"))
"""


async def test_a_client_that_leaves_takes_its_request_along() -> None:
    """`serve model` and `serve retrieval` would else compute for nobody."""
    command = [sys.executable, "-c", WAITING_SERVER]
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    try:
        async with asyncio.timeout(60):
            about = (await server.stdout.readline()).decode()
            _, writer = await asyncio.open_connection("127.0.0.1", int(about.rsplit(":", 1)[1]))
            writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert await server.stdout.readline() == b"asked\n"
            writer.close()
            assert await server.stdout.readline() == b"given up\n"
    finally:
        server.kill()
        await server.wait()
