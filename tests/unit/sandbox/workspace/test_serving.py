"""A workspace that serves lets its commands connect to one port, which the host answers, and to nothing else."""

from __future__ import annotations

import ast
import asyncio
import os
import shlex
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from core.sandbox.workspace import IsolatedWorkspace, RepositoryWorkspace
from tests import kit
from tests.unit.sandbox.honeypot import open_servers, was_called

Make = Callable[..., RepositoryWorkspace]

# Tries each way out and prints {way: what came of it}: the answer, or the name of the error.
PROBE = """
import socket, sys
from socket import AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_UNIX, SOCK_DGRAM, SOCK_RAW, SOCK_STREAM
inside, tcp, udp, unix, abstract = sys.argv[1:]
def talk(family, kind, address, connect=True):
    with socket.socket(family, kind) as client:
        client.settimeout(20)
        if connect:
            client.connect(address)
            client.send(b"hello")
        else:
            client.sendto(b"hello", address)
        return client.recv(99).decode() if kind == SOCK_STREAM else "sent"
def serve(host):
    with socket.create_server((host, 0)):
        return "listens"
ways = {
    "the port": lambda: talk(AF_INET, SOCK_STREAM, ("127.0.0.1", int(inside))),
    "tcp": lambda: talk(AF_INET, SOCK_STREAM, ("127.0.0.1", int(tcp))),
    "udp": lambda: talk(AF_INET, SOCK_DGRAM, ("127.0.0.1", int(udp)), False),
    "unix": lambda: talk(AF_UNIX, SOCK_STREAM, unix),
    "abstract": lambda: talk(AF_UNIX, SOCK_STREAM, "\\0" + abstract),
    "an address": lambda: talk(AF_INET, SOCK_STREAM, ("192.0.2.1", 80)),
    "a datagram to an address": lambda: talk(AF_INET, SOCK_DGRAM, ("192.0.2.1", 53), False),
    "ipv6": lambda: talk(AF_INET6, SOCK_STREAM, ("::1", int(tcp))),
    "raw": lambda: socket.socket(AF_INET, SOCK_RAW, 1) and "raw",
    "packets": lambda: socket.socket(AF_PACKET, SOCK_RAW) and "packets",
    "netlink": lambda: socket.socket(AF_NETLINK, SOCK_RAW) and "netlink",
    "a server": lambda: serve("127.0.0.1"),
    "a name": lambda: socket.getaddrinfo("localhost.example", 80) and "found",
}
found = {}
for way, go in ways.items():
    try:
        found[way] = go()
    except OSError as error:
        found[way] = type(error).__name__
print(found)
"""


@asynccontextmanager
async def answering(listener: socket.socket | None) -> AsyncIterator[None]:
    """Answer who connects with `from the host`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(99)
        writer.write(b"from the host")
        writer.close()

    async with await asyncio.start_server(answer, sock=listener):
        yield


def port_of(server: socket.socket | None) -> int:
    assert server is not None
    return int(server.getsockname()[1])


async def test_the_port_of_the_host_answers_and_no_other_way_is_open(make: Make, tmp_path: Path) -> None:
    with open_servers(tmp_path / "socket", str(tmp_path)) as servers:
        tcp, udp, *_ = servers
        async with make(serves=True) as workspace, make(serves=True) as other:
            await workspace.start({"a.py": b""})
            await other.start({"a.py": b""})
            places = [str(port_of(tcp)), str(port_of(udp)), str(tmp_path / "socket"), str(tmp_path)]
            async with answering(workspace.listener), answering(other.listener):
                probe = shlex.join(["python3", "-c", PROBE, str(port_of(workspace.listener)), *places])
                result = await workspace.exec(probe, timeout_s=60)
                # A neighbour's port is as closed as the host's own.
                crossing = shlex.join(["python3", "-c", PROBE, str(port_of(other.listener)), *places])
                crossed = await workspace.exec(crossing, timeout_s=60)
                ports = port_of(workspace.listener), port_of(other.listener)
        assert not any(was_called(server) for server in servers)
    found = ast.literal_eval(result.stdout.decode())
    assert found.pop("the port") == "from the host"
    # No interface but the loopback, so a datagram has no route; to the loopback it is sent, where nobody listens.
    assert found.pop("a datagram to an address") == "OSError"
    assert found.pop("udp") == "sent"
    assert found.pop("a name") == "gaierror"
    assert set(found.values()) == {"PermissionError"}, found
    if ports[0] != ports[1]:
        assert ast.literal_eval(crossed.stdout.decode())["the port"] == "PermissionError"


async def test_the_bait_is_taken_without_a_workspace(tmp_path: Path) -> None:
    """Otherwise it would prove nothing that a workspace does not reach it."""
    with open_servers(tmp_path / "socket", str(tmp_path)) as servers, socket.create_server(("127.0.0.1", 0)) as own:
        places = [str(port_of(servers[0])), str(port_of(servers[1])), str(tmp_path / "socket"), str(tmp_path)]
        async with answering(own):
            python = await asyncio.create_subprocess_exec(
                "python3", "-c", PROBE.replace("settimeout(20)", "settimeout(1)"), str(port_of(own)), *places,
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            said, _ = await python.communicate()
        found = ast.literal_eval(said.decode())
        assert (found["the port"], found["a server"]) == ("from the host", "listens")
        assert all(was_called(server) for server in servers)


async def test_without_serving_there_is_no_socket_at_all(make: Make) -> None:
    async with make() as workspace:
        await workspace.start({"a.py": b""})
        assert workspace.listener is None
        if isinstance(workspace, IsolatedWorkspace):
            result = await workspace.exec("python3 -c 'import socket; socket.socket()'", timeout_s=60)
            assert b"PermissionError" in result.stderr


async def test_paths_are_shown_read_only_and_proc_is_the_workspaces_own(make: Make) -> None:
    folder = Path(__file__).parent
    kit.require(not folder.is_relative_to("/tmp"), "needs a checkout outside of /tmp, which a workspace has of its own")
    async with make(paths=(str(folder), "/proc")) as workspace:
        await workspace.start({"a.py": b""})
        seen = await workspace.exec(f"cat {shlex.quote(__file__)}", timeout_s=60)
        assert seen.stdout == Path(__file__).read_bytes()
        for command in (
            f"touch {shlex.quote(str(folder))}/new",
            f"echo >> {shlex.quote(__file__)}",
            f"ls {shlex.quote(str(folder.parent / 'sandbox'))}",  # beside it
            "cat /proc/1/environ",
            "cat /proc/1/mem",
            "ls /proc/1/root/",
            "cat /proc/cpuinfo",
            "cat /proc/sys/kernel/hostname",
            "echo 1000 > /proc/self/oom_score_adj",
            f"ls /proc/{os.getpid()}" if os.getpid() > 1000 else "false",
        ):
            result = await workspace.exec(command, timeout_s=60)
            assert (result.ok, result.stdout) == (False, b""), command
        shown = await workspace.exec("ls -d /proc/[0-9]*", timeout_s=60)
        assert 1 <= len(shown.stdout.split()) <= 5


async def test_a_workspace_that_serves_leaves_nothing_behind(make: Make) -> None:
    before = kit.list_descendants(os.getpid()), os.listdir("/proc/self/fd")
    with kit.adopt_orphans():
        async with make(serves=True) as workspace:
            await workspace.start({"a.py": b""})
            listener = workspace.listener
            await workspace.exec("sleep 99 &", timeout_s=60)
        assert kit.list_new_processes(before[0]) == []
    assert listener is not None
    assert listener.fileno() == -1
    assert workspace.listener is None
    assert len(os.listdir("/proc/self/fd")) <= len(before[1])


@pytest.mark.parametrize("path", ["relative", "/usr/../usr", "/no/such/path", "/", "/tmp", "/testbed"])
def test_a_path_that_cannot_be_shown_is_refused(path: str) -> None:
    access: dict[str, Any] = {"paths": (path,)}
    with pytest.raises(ValueError, match=path):
        IsolatedWorkspace(**access)
