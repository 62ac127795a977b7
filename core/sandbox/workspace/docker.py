"""Runs a workspace in a Docker container without network, from the image of the task.

Every command is a call of the `docker` program. The image needs a shell, git and tar, as the images of repository
tasks have.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from uuid import uuid4

from core.sandbox.workspace.base import (
    ENVIRONMENT,
    CommandResult,
    Reason,
    RepositoryWorkspace,
    WorkspaceError,
    WorkspaceLimits,
    WorkspaceUnavailable,
)

_CHUNK = 65536
_WAIT = "while :; do sleep 1000 & wait; done"
"""Keeps the container running. Its shell is the first process, which nothing inside can kill; the sleep can be."""
END_ALL = "kill -9 -1; echo ended"
"""Kills every process inside but the first and this one, which says so."""


class DockerWorkspace(RepositoryWorkspace):
    """Keeps a workspace in a container of `image`. `runtime` is the command to call, such as docker or podman."""

    def __init__(
        self, image: str, limits: WorkspaceLimits | None = None, workdir: str = "/testbed", runtime: str = "docker"
    ):
        super().__init__(limits, workdir)
        self.image = image
        self.runtime = shutil.which(runtime) or ""
        if not self.runtime:
            raise WorkspaceUnavailable(f"{runtime} is not installed; install it, or use the backend landlock")
        self.name = ""

    async def open(self) -> None:
        self.name = f"tokentrue-{uuid4().hex}"
        command = self.start_command()
        try:
            result = await self._call(command, timeout_s=self.limits.start_timeout_s)
        except OSError as error:
            raise WorkspaceUnavailable(f"{self.runtime} cannot be started: {error}") from error
        if not result.ok:
            await self.stop()
            said = result.stderr.decode(errors="replace").strip()
            raise WorkspaceUnavailable(f"docker run of {self.image} failed ({result.reason}): {said}"[:500])

    def start_command(self) -> list[str]:
        """Return the command that starts the container: no network, no new privileges, bounded memory and processes."""
        limits = self.limits
        environment = [word for name, value in ENVIRONMENT.items() for word in ("--env", f"{name}={value}")]
        return [
            self.runtime, "run", "--detach", "--rm", "--name", self.name, "--network", "none",
            "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", str(limits.processes),
            "--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m", "--cpus", "1",
            "--tmpfs", f"/tmp:exec,size={limits.disk_mb}m", *environment, "--workdir", self.workdir,
            "--entrypoint", "/bin/sh", self.image, "-c", _WAIT,
        ]  # fmt: skip

    def exec_command(self, command: str) -> list[str]:
        return [self.runtime, "exec", "--interactive", "--workdir", self.workdir, self.name, "/bin/sh", "-c", command]

    async def exec(
        self, command: str, stdin: bytes = b"", *, timeout_s: float, output_bytes: int = 1 << 20
    ) -> CommandResult:
        if not self.name:
            raise WorkspaceError("lost", "the workspace is not open")
        result = await self._call(self.exec_command(command), stdin, timeout_s, output_bytes)
        # Ending the docker program ends nothing inside: everything but the container's first process is killed there.
        cleared = await self._call(self.exec_command(END_ALL), timeout_s=self.limits.start_timeout_s)
        if cleared.stdout != b"ended\n":  # the container is gone, or so full of processes that none can start
            said = cleared.stderr.decode(errors="replace").strip()
            raise WorkspaceError("lost", f"the processes inside cannot be ended ({cleared.reason}): {said}"[:500])
        return result

    async def interrupt(self) -> None:
        if self.name:
            await self._call(self.exec_command(END_ALL), timeout_s=self.limits.start_timeout_s)

    async def stop(self) -> None:
        name, self.name = self.name, ""
        if name:
            with contextlib.suppress(OSError):
                await self._call([self.runtime, "rm", "--force", name], timeout_s=self.limits.start_timeout_s)

    async def _call(
        self, command: list[str], stdin: bytes = b"", timeout_s: float = 60.0, output_bytes: int = 1 << 20
    ) -> CommandResult:
        """Run a program of the host until it ends or a limit ends it."""
        start = time.monotonic()
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        kept = bytearray(), bytearray()
        streams = zip((process.stdout, process.stderr), kept, strict=True)
        readers = [_read(stream, target, kept, output_bytes) for stream, target in streams]
        reason: Reason | None = None
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(_write(process.stdin, stdin), *readers)
            reason = "exit"
        except TimeoutError:
            reason = "timeout"
        except _TooMuch:
            reason = "output_limit"
        finally:
            if reason != "exit":
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            code = await process.wait()
        stdout, stderr = (bytes(target[:output_bytes]) for target in kept)
        return CommandResult(reason, code if code >= 0 else 128 - code, stdout, stderr, time.monotonic() - start)


class _TooMuch(Exception):
    """Ends the reading of an output that is too long."""


async def _write(stream: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(data)
        await stream.drain()
    stream.close()


async def _read(
    stream: asyncio.StreamReader, target: bytearray, kept: tuple[bytearray, ...], output_bytes: int
) -> None:
    while data := await stream.read(_CHUNK):
        target += data
        if sum(map(len, kept)) > output_bytes:
            raise _TooMuch
