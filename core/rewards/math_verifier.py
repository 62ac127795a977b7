"""Runs math-verify in worker processes, which are killed when they hang.

math-verify guards itself with SIGALRM, which works only in a main thread and wedges asyncio, and no thread can end a
sympy that simplifies for ever. Here a thread waits for a worker process up to a deadline and then kills it. The worker
is this file run as a script: it gets an answer, its labels and the deadline as JSON, and tells `equal` or `different`.
"""

from __future__ import annotations

import asyncio
import json
import queue
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Literal

Outcome = Literal["equal", "different", "timeout", "error"]

START_S = 120.0
"""Limits the seconds in which a worker imports sympy, on a busy machine."""
LONGEST_VERDICT = 16
MEMORY = 4 << 30
"""Limits a worker's address space in bytes; sympy can ask for all there is."""


class VerifierError(RuntimeError):
    """Reports that no worker can be started."""


class MathVerifier:
    """Runs at most `workers` comparisons at once, each within `timeout_s` seconds; any thread or event loop may ask."""

    def __init__(self, *, timeout_s: float, workers: int):
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
        worker = None
        while worker is None or worker.process.poll() is not None:  # an idle one may have been killed, for its memory
            try:
                worker = self._idle.get_nowait()
            except queue.Empty:
                worker = _Worker()
        outcome = worker.ask(answer, labels, self._timeout_s)
        if outcome in ("equal", "different"):
            self._idle.put(worker)
        else:
            worker.kill()
        return outcome


class _Worker:
    """Holds one process, which answers each message with a message."""

    def __init__(self) -> None:
        self._pipe, its_end = Pipe()
        with its_end:
            self.process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(its_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[its_end.fileno()],
                start_new_session=True,
            )
        # The first comparison loads half of sympy, which must not count for an answer.
        if self.ask("\\frac{1}{2}", ["0.5"], START_S) != "equal":
            self.kill()
            raise VerifierError(
                "the worker of math-verify did not start; `pip install -r requirements.txt` brings math-verify, and "
                f"`{sys.executable} -c 'import math_verify'` shows what is wrong"
            )

    def ask(self, answer: str, labels: list[str], timeout_s: float) -> Outcome:
        try:
            self._pipe.send_bytes(json.dumps([answer, labels, timeout_s]).encode())
            if not self._pipe.poll(timeout_s):
                return "timeout"
            verdict = self._pipe.recv_bytes(LONGEST_VERDICT)  # no object: nothing of the worker is unpickled
        except (OSError, EOFError):
            return "error"
        return "equal" if verdict == b"equal" else "different" if verdict == b"different" else "error"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._pipe.close()


def run_worker(pipe: Connection) -> None:
    """Compare until the pipe ends. SIGALRM ends a worker that hangs and that nobody is left to kill."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy import Float, MatrixBase, MatrixSymbol, Symbol, log  # type: ignore[import-untyped]
    from sympy.core.function import AppliedUndef  # type: ignore[import-untyped]

    printer = import_module("sympy.utilities.lambdify")._EvaluatorPrinter
    write = printer.doprint

    def write_function(self: Any, name: str, args: Any, expr: Any, **more: Any) -> str:
        """Write the Python function by which sympy computes a sum or a root, unless a name of the answer is in it.

        sympy writes names as they are, and runs it: `\\hat{[0]if(0)else(open(...))}` in a sum would open a file.
        """
        if foreign := expr.atoms(Symbol, MatrixSymbol, AppliedUndef) - set(args):
            raise NameError(f"the function has no value for {foreign}")
        return str(write(self, name, args, expr, **more))

    printer.doprint = write_function
    # By default, math-verify takes a number out of an answer that is no LaTeX: 72 out of `(lambda: 72)()`.
    latex = [LatexExtractionConfig()]

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
        found = parse(f"\\boxed{{{answer}}}", latex, parsing_timeout=None)
        for gold in (parse(f"\\boxed{{{label}}}", latex, parsing_timeout=None) for label in labels):
            zeros = count_zeros(found, gold)
            if verify(gold, found, float_rounding=6 + zeros, numeric_precision=15 + zeros, timeout_seconds=None):
                return True
        return False

    while True:
        answer, labels, timeout_s = json.loads(pipe.recv_bytes())
        signal.setitimer(signal.ITIMER_REAL, timeout_s + 1.0)
        verdict = equal(answer, labels)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        pipe.send_bytes(b"equal" if verdict else b"different")


if __name__ == "__main__":
    with suppress(EOFError):
        run_worker(Connection(int(sys.argv[1])))
