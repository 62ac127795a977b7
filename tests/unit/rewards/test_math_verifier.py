"""math-verify out of process: killed when it hangs, from any thread and loop, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from multiprocessing import Pipe
from pathlib import Path

import pytest

from core.rewards import math_verifier
from core.rewards.math_verifier import MathVerifier
from tests import kit

ENDLESS = "10^{10^{10^{10}}}"


def children() -> set[int]:
    return set(kit.list_descendants(os.getpid()))


async def test_a_comparison_that_hangs_is_killed_and_its_worker_replaced() -> None:
    before, handler = children(), signal.getsignal(signal.SIGALRM)
    verifier = MathVerifier(timeout_s=0.5, workers=2)
    hung = asyncio.gather(*(verifier.compare(ENDLESS, ["3"]) for _ in range(3)))
    await asyncio.sleep(0.05)
    assert not hung.done(), "the event loop stood still"
    assert await hung == ["timeout"] * 3
    verifier.close()
    assert children() == before
    assert signal.getsignal(signal.SIGALRM) is handler


async def test_a_worker_that_dies_at_work_is_an_error() -> None:
    before = children()
    verifier = MathVerifier(timeout_s=60.0, workers=1)
    assert await verifier.compare("0.5", ["0.5"]) == "equal"
    asked = asyncio.create_task(verifier.compare(ENDLESS, ["3"]))
    await asyncio.sleep(0.5)
    (worker,) = children() - before
    os.kill(int(worker), signal.SIGKILL)
    assert await asked == "error"
    verifier.close()


def test_loops_and_threads_share_one_verifier() -> None:
    verifier = MathVerifier(timeout_s=60.0, workers=1)
    outcomes: list[str] = []

    def one_loop(answer: str) -> None:
        outcomes.append(asyncio.run(verifier.compare(answer, [r"\frac{1}{2}"])))

    threads = [threading.Thread(target=one_loop, args=(answer,)) for answer in ("0.5", "0.7", r"\frac{3}{6}")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    verifier.close()
    assert sorted(outcomes) == ["different", "equal", "equal"]


async def test_an_idle_worker_that_died_is_replaced_and_no_answer_is_wrong_for_it() -> None:
    before = children()
    verifier = MathVerifier(timeout_s=60.0, workers=1)
    assert await verifier.compare("0.5", ["0.5"]) == "equal"
    (worker,) = children() - before
    os.kill(int(worker), signal.SIGKILL)
    await asyncio.sleep(0.5)
    assert await verifier.compare("0.5", ["0.5"]) == "equal"
    assert await verifier.compare(r"\frac{2}{4}", ["3", "0.5"]) == "equal"
    assert await verifier.compare("0.5", ["3", "0.25"]) == "different"
    verifier.close()


def test_a_worker_ends_itself_when_nobody_is_left_to_kill_it() -> None:
    ours, its_end = Pipe()
    with ours, its_end:
        worker = [sys.executable, "-P", math_verifier.__file__, str(its_end.fileno())]
        process = subprocess.Popen(worker, pass_fds=[its_end.fileno()])
        ours.send_bytes(json.dumps([ENDLESS, ["3"], 0.1]).encode())
        assert process.wait(timeout=100) == -signal.SIGALRM


@pytest.mark.parametrize("name", [r"\hat{CODE}", r"\mathbb{CODE}", "x_{CODE}"])
async def test_no_name_in_an_answer_runs_as_python(name: str, tmp_path: Path) -> None:
    path = "+".join(f"chr({ord(letter)})" for letter in str(tmp_path / "ran"))
    name = name.replace("CODE", f"[0]if(0)else(open({path},chr(119)))")
    verifier = MathVerifier(timeout_s=60.0, workers=1)
    assert await verifier.compare(rf"\sum_{{n=0}}^{{\infty}} \frac{{1}}{{n! {name}^n}}", [r"\sqrt{2}"]) == "different"
    assert not list(tmp_path.iterdir())
    assert await verifier.compare(r"\sum_{n=0}^{\infty} \frac{1}{n!}", ["e"]) == "equal", "sums are computed as before"
    verifier.close()
