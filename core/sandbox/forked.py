"""Starts programs as forks of a server (fork_server.py), of which each process of the host has one for each kind."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import marshal
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from io import FileIO
from pathlib import Path
from threading import Lock
from types import ModuleType

from core.sandbox import fork_server

_START = (
    "import marshal, sys; names = {'__name__': 'isolation'}; programs = marshal.load(sys.stdin.buffer); "
    "[exec(program, names) for program in programs[:-1]]; names['__name__'] = '__main__'; exec(programs[-1], names)"
)
_ANSWER_S = 60.0  # for a server to start and to fork; a busy machine takes long
CHANNEL = 3
"""Names the descriptor of the listener's channel in a workspace."""


def list_python() -> list[str]:
    """Return the command of a bare Python that runs the programs which come on its stdin (`compile_programs`)."""
    interpreter = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    return [interpreter, "-P", "-s", "-S", "-B", "-X", "utf8", "-c", _START]


@cache
def compile_programs(*modules: ModuleType) -> bytes:
    """Return the programs in these files, which run in one set of names, the last one as `__main__`."""
    paths = [Path(str(module.__file__)) for module in modules]
    return marshal.dumps([compile(path.read_bytes(), path.name, "exec", dont_inherit=True) for path in paths])


class ForkServer:
    """Keeps a server of this process that forks what `load_programs` returns. Threads may share it.

    It is started when it is first needed, and again if it has ended. A fork of this process starts its own.
    """

    def __init__(self, load_programs: Callable[[], bytes], environment: dict[str, str]):
        self._load_programs = load_programs
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        """Return the id of the server's process, 0 where none has been started."""
        return self._process.pid if self._process else 0

    def fork(self, *ends: int) -> socket.socket:
        """Start a program that has `ends` as its descriptors 0, 1, 2 and so on.

        Return a socket that tells how it goes on (fork_server.MESSAGE).

        Raises:
            OSError: the server cannot be started, or has just ended.
        """
        life, its_life = socket.socketpair()
        with its_life, contextlib.ExitStack() as unused:
            unused.enter_context(life)
            try:
                with self._lock:
                    if self._process is None or self._process.poll() is not None:
                        self._end()
                        self._start()
                    socket.send_fds(self._control, [b"+"], [its_life.fileno(), *ends])
            except ConnectionError as error:
                raise OSError(self.explain_end()) from error
            unused.pop_all()
        return life

    def explain_end(self) -> str:
        """Return that the server has ended, and the last line of what it said."""
        with self._lock:
            said = self._process and self._process.stdout and self._process.stdout.read(4096)
        lines = (said or b"").decode(errors="replace").splitlines()
        return ": ".join(["the fork server has ended", *lines[-1:]])

    def close(self) -> None:
        """End the server and all of its programs. If the host is killed, they end by themselves."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        programs = self._load_programs()
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pipe = subprocess.PIPE
        with control:
            # Its streams are pipes since those of sandboxes are: a fork inherits Python's objects for them.
            process = self._process = subprocess.Popen(
                [*list_python(), str(control.fileno())], stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, bufsize=0,
                cwd="/", env=self._environment, start_new_session=True, pass_fds=(control.fileno(),),
            )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        with contextlib.suppress(BrokenPipeError), open(process.stdin.fileno(), "wb", closefd=False) as stdin:
            stdin.write(programs)
        process.stdin.close()

    def _end(self) -> None:
        if self._process is None:
            return
        self._control.close()
        self._process.kill()  # a fork of the host may hold the socket open
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._process = None

    def _forget(self) -> None:
        """Leave the server to the process that this one is a fork of."""
        self._lock = Lock()  # another thread may have held it
        if self._process is not None:
            self._process.returncode = 0  # it is no child of this process, which must neither kill it nor wait for it
            self._end()


class ForkedProcess:
    """Runs as a fork of a server, with what `execute` needs of a `subprocess.Popen`. It inherits `report` as 3."""

    def __init__(self, server: ForkServer, report: int):
        self._server = server
        self._code: int | None = None
        with contextlib.ExitStack() as passed, contextlib.ExitStack() as kept:
            pipes = [_open_pipe(passed, kept, write=number == 0) for number in range(3)]
            self.stdin, self.stdout, self.stderr = (own for own, _ in pipes)
            self._life = kept.enter_context(server.fork(*(end.fileno() for _, end in pipes), report))
            self._life.settimeout(_ANSWER_S)
            self.pid = self._receive(fork_server.STARTED)
            self._kept = kept.pop_all()

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()

    @property
    def returncode(self) -> int | None:
        """Return the exit status, None as long as the process runs. Raises OSError as `wait` does."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def watch(self) -> int:
        """Return a new descriptor that is readable when the process has ended."""
        return os.dup(self._life.fileno())

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, or minus the signal.

        Raises:
            subprocess.TimeoutExpired: it has not ended in `timeout` seconds.
            OSError: the server has ended, and with it the process.
        """
        if self._code is None:
            self._life.settimeout(timeout)
            try:
                self._code = os.waitstatus_to_exitcode(self._receive(fork_server.ENDED))
            except (BlockingIOError, TimeoutError) as error:
                raise subprocess.TimeoutExpired("fork", timeout or 0) from error
        return self._code

    def _receive(self, awaited: int) -> int:
        """Return the number of the event that is due."""
        told = self._life.recv(struct.calcsize(fork_server.MESSAGE))
        if not told:
            raise OSError(self._server.explain_end())
        event, number = struct.unpack(fork_server.MESSAGE, told)
        if event == fork_server.FAILED:
            raise OSError(number, os.strerror(number))
        if event != awaited:
            raise OSError("the fork ended before it began")
        return int(number)


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


def _open_pipe(passed: contextlib.ExitStack, kept: contextlib.ExitStack, write: bool) -> tuple[FileIO, FileIO]:
    """Return our end, which is to be written to or else read from, and the other one."""
    read_end, write_end = os.pipe()
    ends = FileIO(read_end), FileIO(write_end, "w")
    own, other = reversed(ends) if write else ends
    return kept.enter_context(own), passed.enter_context(other)
