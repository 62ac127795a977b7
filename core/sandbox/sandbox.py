"""Runs Python that a model wrote in another process and reports how it ended."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache, partial
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, Generic, Literal, TypeVar

from core.sandbox import fork_server, inside
from core.sandbox.backends import (
    ENVIRONMENT,
    ISOLATED,
    check_platform,
    explain,
    make_command,
    make_instructions,
)
from core.sandbox.forked import ForkedProcess, ForkServer, compile_programs
from core.sandbox.process import ChildProcess, Ending, ReportPipe, execute
from core.sandbox.result import Backend, SandboxLimits, SandboxResult, SandboxUnavailable, Status

Result = TypeVar("Result")

SERVER = ForkServer(lambda: compile_programs(inside, fork_server), ENVIRONMENT)
"""Starts the programs of the backend landlock."""

_SELF_TEST = """
import _socket, os

def refused(action, *arguments):
    try:
        action(*arguments)
    except OSError:
        return
    raise SystemExit(f"{action.__name__} was not refused")

refused(os.listdir, "/proc")
refused(open, "/etc/passwd")
refused(open, "/escape", "w")
refused(os.fork)
refused(os.execv, "/bin/sh", ["sh"])
refused(_socket.socket)
refused(os.kill, -1, 0)
open("own", "w").close()
print("isolated")
"""


class Sandbox:
    """Runs at most `slots` programs at a time, by default one per core; the others wait.

    `backend` is the isolation: `auto` takes bubblewrap if it works, else landlock. The constructor tries it out, once
    per process and kind. `unsafe_local` does not isolate at all and must be asked for by name: for code that you trust.

    Raises:
        SandboxUnavailable: no isolation works here; the message says what is missing.
    """

    def __init__(
        self, limits: SandboxLimits | None = None, backend: Literal["auto"] | Backend = "auto", slots: int | None = None
    ):
        self.limits = limits or SandboxLimits()
        self.backend: Backend = _pick_backend() if backend == "auto" else _try_backend(backend)
        self._threads = ThreadPoolExecutor(slots or len(os.sched_getaffinity(0)), thread_name_prefix="sandbox")

    async def run(self, code: str, timeout_s: float | None = None) -> SandboxResult:
        """Run `code` as a program and return the result; cancelling the call kills it.

        `timeout_s` may give this run less time than the limits, never more.

        Raises:
            SandboxUnavailable: the isolation could not be set up, so nothing ran, or the fork server was killed.
        """
        limits = self.limits
        if timeout_s is not None:
            limits = limits.model_copy(update={"timeout_s": min(timeout_s, limits.timeout_s)})
        stop = Event()
        try:
            return await asyncio.wrap_future(self._threads.submit(_run, self.backend, code, limits, stop))
        finally:
            stop.set()


def _run(backend: Backend, code: str, limits: SandboxLimits, stop: Event) -> SandboxResult:
    """Run `code` and wait for it, or until `stop` is set."""
    isolated = backend in ISOLATED
    with ReportPipe() as report, nullcontext("/") if isolated else TemporaryDirectory(prefix="sandbox-") as folder:
        environment = ENVIRONMENT if isolated else ENVIRONMENT | {"TMPDIR": folder}
        stdin = make_instructions(backend, code, limits, report.child_end)
        start: Callable[[], ChildProcess | ForkedProcess]
        if backend == "landlock":
            start = partial(ForkedProcess, SERVER, report.child_end)
        else:
            start = partial(ChildProcess, make_command(backend), environment, folder, report.child_end)
        try:
            ending = execute(start, stdin, report, limits, stop, monitored=isolated)
        except OSError as error:
            raise SandboxUnavailable(f"{backend}: the program could not be run: {error}") from error
    ready, _, verdict = ending.report.partition("ready\n")
    if ready or (ending.reason == "exit" and not ending.report):
        raise SandboxUnavailable(f"{backend}: {explain(ready or ending.stderr.strip() or 'no answer')}")
    return SandboxResult(
        status=_status(ending, verdict),
        stdout=ending.stdout,
        stderr=ending.stderr,
        exit_code=ending.exit_code if ending.reason == "exit" else None,
        seconds=ending.seconds,
        backend=backend,
    )


def _status(ending: Ending, verdict: str) -> Status:
    """Return the status of a run. The code itself may have written `verdict`, so it decides nothing else."""
    if ending.reason == "output_limit":
        return "output_limit"
    if ending.reason != "exit":
        return "timeout"
    if ending.exit_code == 0:
        return "ok"
    if ending.exit_code == 128 + signal.SIGKILL:  # not by us: by the kernel's out-of-memory killer
        return "memory"
    if ending.exit_code == 128 + signal.SIGSYS or verdict == "blocked":
        return "blocked"
    return "memory" if verdict == "memory" else "error"


@cache
def _try_backend(backend: Backend) -> Backend:
    check_platform(backend)
    if backend == "unsafe_local":
        return backend
    result = _run(backend, _SELF_TEST, SandboxLimits(timeout_s=60), Event())
    if result.stdout != "isolated\n":
        raise SandboxUnavailable(f"{backend}: the self-test ended with {result.status}: {result.stderr.strip()}")
    return backend


@cache
def _pick_backend() -> Backend:
    problems = []
    for backend in ISOLATED:
        try:
            return _try_backend(backend)
        except SandboxUnavailable as problem:
            problems.append(str(problem))
    raise SandboxUnavailable(
        "\n  ".join(["no isolation for code that a model wrote:", *problems])
        + "\nFix one of these, or run code that you trust with backend unsafe_local: `tokentrue sandbox FILE "
        "--unsafe-local`, or in a recipe the key `backend` beside `sandbox`."
    )


class KeptRuns(Generic[Result]):
    """Holds the `size` runs that were asked for last, those that are under way among them; with size 0 none.

    So equal programs run once, if they have no randomness. A run that says nothing about its program, such as a
    timeout, is not `conclusive`: it may succeed another time.
    """

    def __init__(self, size: int, conclusive: Callable[[Result], bool]):
        self._size, self._conclusive = size, conclusive
        self._runs: dict[Hashable, asyncio.Task[Result]] = {}

    async def find(self, key: Hashable, run: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return what the kept run of this key gave or will give; without one, that of `run`. It raises as the run."""
        if not self._size:
            return await run()
        task = self._runs.pop(key, None)
        if task is None:
            task = asyncio.create_task(run())
            task.add_done_callback(partial(self._forget_inconclusive, key))
        self._runs[key] = task
        for oldest in list(self._runs)[: len(self._runs) - self._size]:
            del self._runs[oldest]
        return await asyncio.shield(task)  # a rollout that is cancelled must not cancel what others wait for

    def close(self) -> None:
        """End the runs that are under way, and forget all."""
        for task in self._runs.values():
            task.cancel()
        self._runs.clear()

    def _forget_inconclusive(self, key: Hashable, task: asyncio.Task[Result]) -> None:
        conclusive = not task.cancelled() and not task.exception() and self._conclusive(task.result())
        if not conclusive and self._runs.get(key) is task:
            del self._runs[key]
