"""Runs one process to its end, with a deadline and a bound on its output, and leaves nothing of it behind."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event
from typing import IO, Literal, cast

from core.sandbox.forked import ForkedProcess
from core.sandbox.result import SandboxLimits

Reason = Literal["exit", "timeout", "output_limit", "cancelled"]

_GRACE_S = 1.0  # reads the rest of the output after the process ended
_TICK_S = 0.1  # between looks at whether the run was cancelled
_REAP_S = 10.0  # after its child was killed, for the monitor to notice
_CHUNK = 65536
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class OutputCapture:
    """Keeps the head and the tail of a stream, at most `keep` bytes."""

    def __init__(self, keep: int):
        self.total = 0
        self._head, self._tail = bytearray(), bytearray()
        self._head_size, self._tail_size = keep - keep // 2, keep // 2

    def add(self, data: bytes) -> None:
        self.total += len(data)
        space = self._head_size - len(self._head)
        self._head += data[:space]
        self._tail += data[space:]
        del self._tail[: max(0, len(self._tail) - self._tail_size)]

    def text(self) -> str:
        """Decode UTF-8; other bytes and control characters become U+FFFD, so a terminal may show it."""
        missing = self.total - len(self._head) - len(self._tail)
        marker = f"\n... {missing} bytes left out ...\n".encode() if missing else b""
        text = (bytes(self._head) + marker + bytes(self._tail)).decode(errors="replace")
        return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


@dataclass(frozen=True, slots=True)
class Ending:
    """Describes how a process ended. `exit_code` is 128 + n after signal n; `report` came through the report pipe."""

    reason: Reason
    exit_code: int
    seconds: float
    stdout: str
    stderr: str
    report: str


class ReportPipe:
    """A pipe for the few words that the child reports beside its output. `child_end` is the descriptor to pass on."""

    def __init__(self) -> None:
        self._read, self.child_end = os.pipe()

    def __enter__(self) -> ReportPipe:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._read)
        os.close(self.child_end)

    def read(self) -> str:
        """Read what has arrived, at most the first 4096 bytes."""
        os.set_blocking(self._read, False)
        with contextlib.suppress(BlockingIOError):
            return os.read(self._read, 4096).decode(errors="replace")
        return ""


class ChildProcess(subprocess.Popen[bytes]):
    """Runs a `command` in `folder`. The child inherits `report`."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], folder: str, report: int):
        pipe = subprocess.PIPE
        super().__init__(
            command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, cwd=folder, env=environment,
            start_new_session=True, pass_fds=(report,),
        )  # fmt: skip

    def watch(self) -> int:
        """Return a new descriptor that is readable when the process has ended."""
        return os.pidfd_open(self.pid)


def execute(
    start_process: Callable[[], ChildProcess | ForkedProcess],
    stdin: bytes,
    report: ReportPipe,
    limits: SandboxLimits,
    stop: Event,
    monitored: bool,
) -> Ending:
    """Start a process and wait for its end, at most `limits.timeout_s`.

    Setting `stop` cancels the run. `monitored` says that the process only waits for its child.
    """
    start = time.monotonic()
    with start_process() as process:
        try:
            watcher = _Watcher(process, stdin, limits)
            reason = watcher.wait_until_end(start + limits.timeout_s, stop)
        finally:
            _kill(process, monitored)
            code = process.wait()
        watcher.drain()
    stdout, stderr = (capture.text() for capture in watcher.captures)
    if reason == "exit" and watcher.exceeds_limit():
        reason = "output_limit"
    return Ending(reason, code if code >= 0 else 128 - code, time.monotonic() - start, stdout, stderr, report.read())


def _kill(process: ChildProcess | ForkedProcess, monitored: bool) -> None:
    """Kill the process and its group.

    The child of a monitored process is killed first: it is PID 1 of its namespace, and all processes in there die with
    it. The monitor then reaps it, so that no dead process is left to whoever adopts orphans. A child that outlives its
    monitor dies of its parent-death signal (inside.py).
    """
    if process.returncode is not None:  # a fork that has ended: its number may be another process's by now
        return
    with contextlib.suppress(OSError):
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
            children = file.read().split()
        if monitored and children:
            for child in children:
                os.kill(int(child), signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_REAP_S)
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class _Watcher:
    """Feeds a process and reads its output."""

    def __init__(self, process: ChildProcess | ForkedProcess, stdin: bytes, limits: SandboxLimits):
        self._inlet, *self._outlets = (
            cast(IO[bytes], pipe) for pipe in (process.stdin, process.stdout, process.stderr)
        )
        self._process = process
        self._limits = limits
        self._left = memoryview(stdin)
        self._selector = selectors.DefaultSelector()
        self.captures = OutputCapture(limits.keep_bytes), OutputCapture(limits.keep_bytes)

    def exceeds_limit(self) -> bool:
        return sum(capture.total for capture in self.captures) > self._limits.output_bytes

    def wait_until_end(self, deadline: float, stop: Event) -> Reason:
        """Feed and read until the process ends or must be killed."""
        os.set_blocking(self._inlet.fileno(), False)
        exited = self._process.watch()
        try:
            self._selector.register(exited, selectors.EVENT_READ)
            for pipe, capture in zip(self._outlets, self.captures, strict=True):
                self._selector.register(pipe, selectors.EVENT_READ, capture)
            self._selector.register(self._inlet, selectors.EVENT_WRITE)
            while (wait := deadline - time.monotonic()) > 0:
                ready = [key for key, _ in self._selector.select(min(wait, _TICK_S))]
                for key in ready:
                    if key.data:
                        self._read(key)
                    elif key.fileobj is self._inlet:
                        self._write_stdin()
                if self.exceeds_limit():
                    return "output_limit"
                if any(key.fd == exited for key in ready):
                    return "exit"
                if stop.is_set():
                    return "cancelled"
            return "timeout"
        finally:
            self._selector.unregister(exited)
            os.close(exited)

    def drain(self) -> None:
        """Read the rest of the output, within a time and size limit: another process may hold the pipes open."""
        deadline = time.monotonic() + _GRACE_S
        with self._selector:
            if not self._inlet.closed:
                self._selector.unregister(self._inlet)
            while self._selector.get_map() and not self.exceeds_limit() and (wait := deadline - time.monotonic()) > 0:
                for key, _ in self._selector.select(wait):
                    self._read(key)

    def _write_stdin(self) -> None:
        try:
            self._left = self._left[os.write(self._inlet.fileno(), self._left) :]
        except BrokenPipeError:
            self._left = memoryview(b"")
        if not self._left:
            self._selector.unregister(self._inlet)
            self._inlet.close()

    def _read(self, key: selectors.SelectorKey) -> None:
        data = os.read(key.fd, _CHUNK)
        key.data.add(data)
        if not data:
            self._selector.unregister(key.fileobj)
