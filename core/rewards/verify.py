"""math-verify in processes of its own, which are killed when they hang.

math-verify guards itself with SIGALRM, which works only in a main thread and wedges asyncio, and no thread can end a
sympy that simplifies for ever. Here a thread waits for a worker process (verify_worker.py) up to a deadline and then
kills it.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal

Outcome = Literal["equal", "different", "timeout", "error"]

START_S = 120.0
"""What a worker may take to import sympy, on a busy machine."""


class VerifierError(RuntimeError):
    """The worker cannot be started at all."""


class Verifier:
    """At most `workers` comparisons at once, each within `timeout_s` seconds. Any thread and any event loop may ask."""

    def __init__(self, *, timeout_s: float, workers: int):
        if timeout_s <= 0 or workers < 1:
            raise ValueError(f"timeout_s {timeout_s} and workers {workers} must be positive")
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="math-verify")
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()

    async def compare(self, answer: str, labels: Sequence[str]) -> Outcome:
        """Whether the LaTeX `answer` equals any of `labels`.

        Raises:
            VerifierError: math-verify cannot be started.
        """
        return await asyncio.wrap_future(self._threads.submit(self._compare, answer, list(labels)))

    def close(self) -> None:
        """Waits for comparisons under way, then ends the workers."""
        self._threads.shutdown()
        while not self._idle.empty():
            self._idle.get().kill()

    def _compare(self, answer: str, labels: list[str]) -> Outcome:
        try:
            worker = self._idle.get_nowait()
        except queue.Empty:
            worker = _Worker(self._timeout_s)
        outcome = worker.ask(answer, labels)
        if outcome in ("equal", "different"):
            self._idle.put(worker)
        else:
            worker.kill()
        return outcome


class _Worker:
    """One process: a JSON line in, a JSON line out."""

    def __init__(self, timeout_s: float):
        self._timeout_s = timeout_s
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("verify_worker.py")), str(timeout_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._line(START_S) != b"ready\n":
            self.kill()
            raise VerifierError(
                "the worker of math-verify did not start; `pip install -r requirements.txt` brings math-verify, and "
                f"`{sys.executable} -c 'import math_verify'` shows what is wrong"
            )

    def ask(self, answer: str, labels: list[str]) -> Outcome:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"answer": answer, "labels": labels}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return "error"
        line = self._line(self._timeout_s)
        if line is None:
            return "timeout"
        return "equal" if line == b"true\n" else "different" if line == b"false\n" else "error"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what was written to a worker that had died already
                    pipe.close()

    def _line(self, timeout_s: float) -> bytes | None:
        """The next line, b"" at the end of the stream, None when `timeout_s` seconds have passed without one."""
        assert self._process.stdout is not None
        descriptor, deadline, line = self._process.stdout.fileno(), time.monotonic() + timeout_s, b""
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            if not (part := os.read(descriptor, 4096)):
                return b""
            line += part
        return line
