"""Starts programs of workspaces as forks of a server (fork_server.py), of which each process of the host has one."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import socket
import struct
import subprocess
from collections.abc import Sequence

from core.tools.workspace import fork_server


class ForkedProcess:
    """Is the forked program of a workspace. It has what a workspace needs of an `asyncio.subprocess.Process`."""

    stderr = None

    def __init__(self, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader, life: socket.socket):
        self.stdin = stdin
        self.stdout = stdout
        self.pid = 0
        """Is 0 before the process has told it, and after its end."""
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(life, self._read, life)

    def _read(self, life: socket.socket) -> None:
        told = life.recv(struct.calcsize(fork_server.NUMBER))
        if told:
            (self.pid,) = struct.unpack(fork_server.NUMBER, told)
            return
        self.pid = 0
        self._ended.set()
        asyncio.get_running_loop().remove_reader(life)
        life.close()

    async def wait(self) -> None:
        await self._ended.wait()


class ForkServer:
    """Is a running server. `command` starts it, and reads `programs` from stdin."""

    def __init__(self, command: Sequence[str], programs: bytes, environment: dict[str, str]):
        self._owner = os.getpid()
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with control:
            self._process = subprocess.Popen(
                [*command, str(control.fileno())], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd="/",
                env=environment, start_new_session=True, pass_fds=(control.fileno(),),
            )  # fmt: skip
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(programs)
        self.pid = self._process.pid
        atexit.register(self.close)

    def is_running(self) -> bool:
        """Return whether it runs, and belongs to this process rather than to one that this is a fork of."""
        return self._owner == os.getpid() and self._process.poll() is None

    def close(self) -> None:
        """End the server and all of its workspaces. If the host is killed, it ends by itself."""
        atexit.unregister(self.close)
        self._control.close()
        if self._owner == os.getpid():
            self._process.kill()  # a fork of the host may hold the socket open
            self._process.wait()

    async def fork(self, channel: int | None) -> ForkedProcess:
        """Start the program of a workspace, which may have the `channel` of a listener.

        Raises:
            OSError: the server has ended.
        """
        (stream, its_stream), (life, its_life) = socket.socketpair(), socket.socketpair()
        with its_stream, its_life, contextlib.ExitStack() as unused:
            unused.enter_context(life)
            stdout, stdin = await asyncio.open_unix_connection(sock=stream)
            unused.callback(stdin.close)
            # No wait follows, so a cancellation finds either no process, or one that can be stopped.
            ends = [its_stream.fileno(), its_life.fileno(), *([] if channel is None else [channel])]
            socket.send_fds(self._control, [b"+"], ends)
            unused.pop_all()
        return ForkedProcess(stdin, stdout, life)
