"""Starts programs of workspaces as forks of a server (core/sandbox/forked.py), in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct

from core.sandbox import fork_server
from core.sandbox.forked import ForkServer

CHANNEL = 3
"""Names the descriptor of the listener's channel in a workspace."""


class ForkedWorkspace:
    """Runs the forked program of a workspace. It offers what a workspace needs of an `asyncio.subprocess.Process`."""

    def __init__(self, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader, life: socket.socket):
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = asyncio.StreamReader()
        """Says why it could not be forked, and nothing else."""
        self.pid = 0
        """Holds 0 before the process has told its id, and after its end."""
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(life, self._read, life)

    def _read(self, life: socket.socket) -> None:
        if told := life.recv(struct.calcsize(fork_server.MESSAGE)):
            event, number = struct.unpack(fork_server.MESSAGE, told)
            if event == fork_server.STARTED:
                self.pid = number
            elif event == fork_server.FAILED:
                self.stderr.feed_data(f"a fork: {os.strerror(number)}".encode())
            return
        self.pid = 0
        self.stderr.feed_eof()
        self._ended.set()
        asyncio.get_running_loop().remove_reader(life)
        life.close()

    async def wait(self) -> None:
        await self._ended.wait()


async def fork_workspace(server: ForkServer, channel: int | None) -> ForkedWorkspace:
    """Start the program of a workspace, which may have the `channel` of a listener.

    Raises:
        OSError: the server cannot be started, or has just ended.
    """
    stream, its_stream = socket.socketpair()
    with its_stream, open(os.devnull, "wb") as stderr, contextlib.ExitStack() as unused:
        stdout, stdin = await asyncio.open_unix_connection(sock=stream)
        unused.callback(stdin.close)
        # No wait follows, so a cancellation finds either no process, or one that can be stopped.
        ends = [its_stream.fileno(), its_stream.fileno(), stderr.fileno(), *([] if channel is None else [channel])]
        life = server.fork(*ends)
        unused.pop_all()
    return ForkedWorkspace(stdin, stdout, life)
