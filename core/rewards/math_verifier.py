"""Runs math-verify in worker processes, which are killed when they hang.

math-verify guards itself with SIGALRM, which works only in a main thread and wedges asyncio, and no thread can end a
sympy that simplifies for ever. Here a thread waits for a worker process up to a deadline and then kills it. The worker
is this file run as a script: it reads {"answer", "labels"} lines and writes `true` or `false` lines.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["equal", "different", "timeout", "error"]

START_S = 120.0
"""Limits the seconds in which a worker imports sympy, on a busy machine."""
MEMORY = 4 << 30
"""Limits a worker's address space in bytes; sympy can ask for all there is."""


class VerifierError(RuntimeError):
    """Reports that no worker can be started."""


class MathVerifier:
    """Runs at most `workers` comparisons at once, each within `timeout_s` seconds; any thread or event loop may ask."""

    def __init__(self, *, timeout_s: float, workers: int):
        if timeout_s <= 0 or workers < 1:
            raise ValueError(f"timeout_s {timeout_s} and workers {workers} must be positive")
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="math-verify")
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()

    async def compare(self, answer: str, labels: Sequence[str]) -> Outcome:
        """Compare the LaTeX `answer` with `labels`; it is `equal` if it equals any of them.

        Raises:
            VerifierError: math-verify cannot be started.
        """
        return await asyncio.wrap_future(self._threads.submit(self._compare, answer, list(labels)))

    def close(self) -> None:
        """Wait for comparisons under way, then end the workers."""
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
    """Holds one process, which answers each JSON line with a line."""

    def __init__(self, timeout_s: float):
        self._timeout_s = timeout_s
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__)), str(timeout_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._read_line(START_S) != b"ready\n":
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
        line = self._read_line(self._timeout_s)
        if line is None:
            return "timeout"
        return "equal" if line == b"true\n" else "different" if line == b"false\n" else "error"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # closing flushes what a dead worker has not read
                    pipe.close()

    def _read_line(self, timeout_s: float) -> bytes | None:
        """Return the next line, b"" at the end of the stream, or None if none comes within `timeout_s` seconds."""
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


def run_worker(timeout_s: float) -> None:
    """Compare until standard input ends. SIGALRM ends a worker that hangs and that nobody is left to kill."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing that a library prints is taken for a verdict
    from math_verify import parse, verify
    from sympy import Float, MatrixBase, log  # type: ignore[import-untyped]

    def count_zeros(*parts: Any) -> int:
        """Count the zeros behind the point of the smallest number. math-verify rounds to a fixed number of decimals."""
        waiting, zeros = list(parts), 0
        while waiting:
            part = waiting.pop()
            if isinstance(part, (list, MatrixBase)):
                waiting += list(part)
            elif not getattr(part, "is_number", False):
                waiting += getattr(part, "args", ())
            elif isinstance(size := abs(part.evalf(5)), Float) and 0 < size < 1:
                zeros = max(zeros, int(-log(size, 10)))
        return zeros

    def equal(answer: str, labels: list[str]) -> bool:
        # Each has a box of its own: math-verify would merge several boxes of one text into a set.
        found = parse(f"\\boxed{{{answer}}}", parsing_timeout=None)
        for gold in (parse(f"\\boxed{{{label}}}", parsing_timeout=None) for label in labels):
            zeros = count_zeros(found, gold)
            if verify(gold, found, float_rounding=6 + zeros, numeric_precision=15 + zeros, timeout_seconds=None):
                return True
        return False

    equal("\\frac{1}{2}", ["0.5"])  # the first comparison loads half of sympy, which must not count for an answer
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, timeout_s + 1.0)
        request = json.loads(line)
        verdict = equal(request["answer"], request["labels"])
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        print("true" if verdict else "false", file=out, flush=True)


if __name__ == "__main__":
    run_worker(float(sys.argv[1]))
