"""Runs a workspace as processes in namespaces of their own: no root, no network, nothing to install.

`core/sandbox` has the isolation: user, mount, PID, network and IPC namespaces, Landlock and a list of system
calls. Other than a sandbox for one program, a workspace may start processes, and keeps its files between commands. Its
files are in memory, so nothing is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import math
import os
import platform
import shutil
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any, Literal

from core.sandbox import SandboxUnavailable, fork_server
from core.sandbox import inside as isolation
from core.sandbox.backends import CLONE_NUMBERS, check_platform, explain, find_packages, list_mounts, wrap_in_bubblewrap
from core.sandbox.forked import CHANNEL, ForkedWorkspace, ForkServer, compile_programs, fork_workspace
from core.sandbox.seccomp import compile_filter
from core.sandbox.workspace import inside, preloaded
from core.sandbox.workspace.base import (
    ENVIRONMENT,
    CommandResult,
    Reason,
    RepositoryWorkspace,
    WorkspaceError,
    WorkspaceLimits,
    WorkspaceUnavailable,
    check_paths,
)

Isolation = Literal["bubblewrap", "landlock"]

SHELL = "/bin/sh"
PACKAGES = ("pytest", "numpy")
"""Names libraries whose folders are shown to the repository, read-only. One that is not installed is left out."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_PYTHON = () if sys.base_prefix.startswith("/usr") else (f"{sys.base_prefix}/bin", f"{sys.base_prefix}/lib")
_REASONS: tuple[Reason, ...] = ("exit", "timeout", "output_limit")
_STOP_S = 5.0

SERVER = ForkServer(lambda: compile_programs(preloaded, isolation, inside, fork_server), ENVIRONMENT)
"""Starts the programs of the backend landlock."""


class IsolatedWorkspace(RepositoryWorkspace):
    """Keeps a workspace in namespaces. `auto` takes bubblewrap if it is installed, else Landlock's own namespaces.

    Root is given Landlock: the kernel does not count root's processes, and bubblewrap leaves root what it is.
    """

    def __init__(
        self,
        limits: WorkspaceLimits | None = None,
        workdir: str = "/testbed",
        backend: Literal["auto"] | Isolation = "auto",
        *,
        paths: Sequence[str] = (),
        serves: bool = False,
        folders: Sequence[str] = (),
    ):
        """Make a workspace that is not open yet.

        `paths` are files and folders of the host that commands see too, read-only; /proc stands for one with the
        processes of the workspace alone. With `serves`, commands may connect to one port of 127.0.0.1, whose `listener`
        the host serves; without, there is no network. `folders` are writable beside `workdir` and /tmp, and empty as
        they are.
        """
        super().__init__(limits, workdir)
        check_paths(paths, self.workdir)
        self.paths = tuple(paths)
        self.serves = serves
        self.backend: Isolation = choose_backend() if backend == "auto" else backend
        try:
            check_platform(self.backend)
        except SandboxUnavailable as problem:
            raise WorkspaceUnavailable(str(problem)) from problem
        if self.backend == "bubblewrap" and os.geteuid() == 0:
            raise WorkspaceUnavailable("bubblewrap cannot count the processes of root; use the backend landlock")
        self.folders = ("/tmp", self.workdir, *folders)
        self._process: asyncio.subprocess.Process | ForkedWorkspace | None = None
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        host, channel = socket.socketpair()
        with host, channel:
            if self.backend == "landlock":
                try:
                    self._process = await fork_workspace(SERVER, channel.fileno() if self.serves else None)
                except OSError as error:
                    raise WorkspaceUnavailable(f"landlock: the server that forks workspaces: {error!r}") from error
                await self._enclose(CHANNEL if self.serves else None)
            else:
                await self._start_bubblewrap(channel)
                await self._enclose(channel.fileno() if self.serves else None, compile_programs(isolation, inside))
            if self.serves:
                self.listener = _receive_listener(host)

    async def _start_bubblewrap(self, channel: socket.socket) -> None:
        command = asyncio.create_subprocess_exec(
            *wrap_in_bubblewrap(self._list_mounts(), self.folders),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=ENVIRONMENT,
            cwd="/",
            start_new_session=True,
            pass_fds=(channel.fileno(),) if self.serves else (),
        )
        starting = asyncio.ensure_future(command)
        try:
            self._process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # asyncio would kill a bubblewrap whose child does not die with it yet, and then wait for that child.
            self._process = await starting
            raise

    async def _enclose(self, channel: int | None, programs: bytes = b"") -> None:
        """Have the started program build its sandbox. Raises WorkspaceUnavailable if it cannot."""
        spec = {
            "namespaces": self.backend == "landlock",
            "parent": None,  # the fork server or bubblewrap has bound it
            "clone": CLONE_NUMBERS.get(platform.machine()),
            "mounts": self._list_mounts(),
            "proc": "/proc" in self.paths,
            "channel": channel,
            "folders": self.folders,
            "folder_options": f"size={self.limits.disk_mb}m,nr_inodes={self.limits.files + 2},mode=1777",
            "workdir": self.workdir,
            "seccomp": compile_filter(platform.machine(), processes=True, clients=self.serves),
        }
        try:
            async with asyncio.timeout(self.limits.start_timeout_s):
                reason, _, _, _, problem = await self._exchange(programs + marshal.dumps(spec))
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            said = await self._stop_and_read_errors()
            raise WorkspaceUnavailable(f"{self.backend}: {explain(said) if said else repr(error)}") from error
        if reason != inside.EXIT:
            await self.stop()
            raise WorkspaceUnavailable(f"{self.backend}: {explain(problem.decode(errors='replace'))}")

    def _list_mounts(self) -> list[tuple[str, str]]:
        return [
            *list_mounts((*_SYSTEM, *_DEVICES, *_PYTHON), PACKAGES),
            *((os.path.realpath(path), path) for path in self.paths),
        ]

    async def exec(
        self, command: str, stdin: bytes = b"", *, timeout_s: float, output_bytes: int = 1 << 20
    ) -> CommandResult:
        return await self._run({"argv": [SHELL, "-c", command]}, stdin, timeout_s, output_bytes)

    async def run_python(
        self, code: str, stdin: bytes = b"", *, timeout_s: float, output_bytes: int = 1 << 20
    ) -> CommandResult:
        return await self._run({"code": _compile(code)}, stdin, timeout_s, output_bytes)

    async def _run(self, what: dict[str, Any], stdin: bytes, timeout_s: float, output_bytes: int) -> CommandResult:
        """Run a command or code inside."""
        limits = self.limits
        request = {
            **what,
            "stdin": stdin,
            "timeout_s": timeout_s,
            "output_bytes": output_bytes,
            "environment": make_environment(),
            "rlimits": {
                "RLIMIT_AS": limits.memory_mb << 20,
                "RLIMIT_CPU": math.ceil(timeout_s) + 1,
                "RLIMIT_NPROC": limits.processes,
                "RLIMIT_NOFILE": 256,
                "RLIMIT_CORE": 0,
                "RLIMIT_FSIZE": limits.disk_mb << 20,  # also of holes, which git would read for hours
                "RLIMIT_SIGPENDING": 64,  # queued signals are counted by user, so they would be felt outside
            },
        }
        async with self._turn:
            done = False
            try:
                # The program inside keeps the time; this wait only ends if something has stopped it. It is no wait_for,
                # which before Python 3.12 loses a cancellation that comes together with the answer.
                async with asyncio.timeout(timeout_s + limits.start_timeout_s):
                    reason, code, seconds, stdout, stderr = await self._exchange(marshal.dumps(request))
                done = True
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                raise WorkspaceError("lost", f"the workspace gave no answer ({error!r})") from error
            finally:
                if not done:  # what is on its way now would be taken for the answer to the next command
                    await self.stop()
        if reason >= len(_REASONS):
            raise WorkspaceError("lost", stderr.decode(errors="replace"))
        return CommandResult(_REASONS[reason], code, stdout, stderr, seconds)

    async def interrupt(self) -> None:
        if self._turn.locked() and self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(marshal.dumps(inside.INTERRUPT))

    async def _exchange(self, request: bytes) -> tuple[int, int, float, bytes, bytes]:
        """Send a request and return the answer."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise BrokenPipeError("the workspace is not open")
        process.stdin.write(request)
        await process.stdin.drain()
        header = await process.stdout.readexactly(struct.calcsize(inside.HEADER))
        reason, code, seconds, out, err = struct.unpack(inside.HEADER, header)
        return reason, code, seconds, await process.stdout.readexactly(out), await process.stdout.readexactly(err)

    async def stop(self) -> None:
        process, self._process = self._process, None
        if self.listener is not None:
            self.listener.close()
            self.listener = None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        if self._turn.locked():  # a command is running, and the program inside does not look at its stdin
            _kill_inside(process.pid)
        for kill in (_kill_inside, _kill_monitor):
            try:
                async with asyncio.timeout(_STOP_S):
                    await process.wait()
                return
            except TimeoutError:
                kill(process.pid)
        await process.wait()

    async def _stop_and_read_errors(self) -> str:
        """Stop, and return what the program said when it could not even begin."""
        process = self._process
        await self.stop()
        if process is None or process.stderr is None:
            return ""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                return (await process.stderr.read()).decode(errors="replace").strip()
        return ""


def choose_backend() -> Isolation:
    """Return the kind of isolation that this machine and user have."""
    return "bubblewrap" if shutil.which("bwrap") and os.geteuid() != 0 else "landlock"


def make_environment() -> dict[str, str]:
    """Return the variables of every command: Python and its libraries are found, and nothing of ours is told."""
    packages = ":".join(f"/packages{number}" for number in range(len(find_packages(PACKAGES))))
    return ENVIRONMENT | {"PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": packages}


@lru_cache(64)
def _compile(code: str) -> CodeType:
    return compile(code, "<workspace>", "exec", dont_inherit=True)


def _receive_listener(channel: socket.socket) -> socket.socket:
    """Return the listening socket that a workspace has sent."""
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not descriptors:
        raise WorkspaceUnavailable("the workspace has sent no listener")
    return socket.socket(fileno=descriptors[0])


def _kill_inside(pid: int) -> None:
    """Kill the child of the monitor `pid`, which is the first process of its namespace, so all others die.

    The monitor waits for it, and then ends by itself. Were both killed, a dead process would be left to whoever adopts
    orphans, and the first process of a container may never look at it.
    """
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)


def _kill_monitor(pid: int) -> None:
    if pid:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
