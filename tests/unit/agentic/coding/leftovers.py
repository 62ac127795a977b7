"""Runs real rollouts of every kind, and lists what the host has that they could leave behind.

python -m tests.unit.agentic.coding.leftovers landlock|bubblewrap COUNT NAME    # what a test kills in the midst of it
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from agentic.coding.repairs.generate import apply_patch, draw_record
from agentic.coding.rollout import SPEC
from agentic.coding.world import DONE, WORLD, write_edit
from core.policy.base import Roles
from core.rollout.runner import Runner
from core.text.tokenizer import encode_text
from core.types import Completion, Sampling, Task, Trajectory
from tests.kit import call, list_descendants, list_new_processes

AT_ONCE = 50
TASKS = 20
NAME = sys.argv[3] if __name__ == "__main__" else f"left-by-{secrets.token_hex(8)}"
"""Is part of every name that a rollout gives to what it leaves: so what others make meanwhile is not taken for ours."""
KEY = int(NAME[-7:], 16)
"""Is the key of the shared memory that a rollout leaves."""
PLACES = ("/", "/tmp", "/var/tmp", "/dev/shm", "/run", "/dev/mqueue", "/sys/fs/cgroup", "/home", str(Path.cwd()))
HANG = "hang"
"""In place of an answer: the policy never answers."""

BACKGROUND = f"""
for place in {" ".join(PLACES)} $HOME .; do echo x > $place/{NAME}; mkdir $place/{NAME}.d; done 2> /dev/null
mkfifo {NAME}.fifo
(setsid sh -c 'while :; do echo x >> /tmp/{NAME}; sleep 0.1; done' > /dev/null 2>&1 &)
nohup sleep 1000 > /dev/null 2>&1 &
python3 - <<'END'
import ctypes, os, signal, time
ctypes.CDLL(None).shmget({KEY}, 4096, 0o1600)
for number in range(8):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
END
echo begun
"""
RUIN = "bomb() { bomb | bomb & }; bomb; head -c 200000000 /dev/zero > /tmp/big; rm -rf .git; kill -9 1; kill -9 -1"


@dataclass(frozen=True)
class Kind:
    """Is one kind of rollout: the policy's answers, how long it may take, and how it ends (failure or verdict)."""

    answers: Sequence[str]
    ends: tuple[str, ...]
    deadline_s: tuple[float, float] = (600.0, 600.0)


REPAIR = "repair"
"""In place of an answer: the edit that repairs the task."""
ENDS = ("deadline", "solved", "tests_failed", "test_timeout", "workspace")
KINDS = {
    "repaired": Kind((REPAIR, DONE), ("solved",)),
    "background": Kind((call("bash", command=BACKGROUND), REPAIR, DONE), ("solved",)),
    "silent": Kind((REPAIR, HANG), ("deadline",), (2.0, 4.0)),
    "in_a_command": Kind((call("bash", command=f"{BACKGROUND}sleep 1000"), DONE), ("deadline",), (2.0, 6.0)),
    "endless_tests": Kind(
        (call("bash", command="for m in *.py; do echo 'while 1: pass' >> $m; done"), DONE), ("test_timeout",)
    ),
    "ruined": Kind((call("bash", command=RUIN), DONE), ("no_diff", "tests_failed")),
    # Ends anywhere: while the workspace starts, while it is closed, while the diff is graded.
    "anywhere": Kind((call("bash", command=BACKGROUND), REPAIR, DONE), ENDS, (0.0, 3.0)),
}


class Script:
    """Is the policy of one rollout: it gives its answers in order, or none."""

    def __init__(self, tokenizer: Any, answers: Sequence[str]):
        self.tokenizer = tokenizer
        self.left = list(answers)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        answer = self.left.pop(0)
        if answer == HANG:
            await asyncio.Event().wait()
        ids = (*encode_text(self.tokenizer, answer), self.tokenizer.eos_token_id)
        return Completion(ids, (-0.5,) * len(ids), "stop", "0")


def read_host(before: Collection[int] = ()) -> dict[str, list[str]]:
    """List what rollouts could leave behind on this machine: processes that are not in `before`, and all else.

    Numbers of descriptors and threads are left out. The folder of temporary files is the test's own.
    """
    gc.collect()
    return {
        "processes": list_new_processes(before),
        "threads": [re.sub(r"\d+", "", thread.name) for thread in threading.enumerate()],
        "descriptors": [re.sub(r"\d+", "", read_link(path)) for path in Path("/proc/self/fd").iterdir()],
        "mounts": Path("/proc/self/mountinfo").read_text().splitlines(),
        "files": [str(path) for place in {*PLACES, os.getcwd()} for path in Path(place).glob(f"*{NAME}*")],
        "folders": os.listdir(tempfile.gettempdir()),
        "sockets": [line for line in Path("/proc/net/unix").read_text().splitlines() if NAME in line],
        "memory": [line for line in Path("/proc/sysvipc/shm").read_text().splitlines() if str(KEY) in line.split()],
    }


def find_new(before: dict[str, list[str]], after: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return what is in `after` and was not in `before`, or not so often."""
    new = {name: list((Counter(after[name]) - Counter(before[name])).elements()) for name in after}
    return {name: found for name, found in new.items() if found}


def read_link(path: Path) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:  # the descriptor that lists the others
        return ""


async def run_rollouts(tokenizer: Any, backend: str, count: int) -> dict[str, Counter[str]]:
    """Run `count` rollouts, AT_ONCE at a time, and return how those of each kind ended."""
    recipe = SPEC.load(
        "tiny",
        [
            f"coding.backend={backend}", "coding.tools=[bash, edit]", "coding.max_tokens=4000",
            "coding.context_tokens=20000", "coding.command_timeout_s=600", "coding.test_timeout_s=5",
            "coding.remember=0", "model.max_model_len=null",
        ],
    )  # fmt: skip
    method = SPEC.build(recipe, tokenizer)
    slots = asyncio.Semaphore(AT_ONCE)

    async def run(number: int) -> Trajectory:
        kind, chance = list(KINDS.values())[number % len(KINDS)], Random(number)
        record = draw_record("test", number % TASKS, "function")
        record["metadata"]["workdir"] = f"/{NAME}"
        path, text = next(iter(record["metadata"]["repository"].items()))
        repair = write_edit(path, text, apply_patch(text, record["metadata"]["patch"]))
        policy = Script(tokenizer, [repair if answer == REPAIR else answer for answer in kind.answers])
        task = Task(str(number), record["prompt"], (record["label"],), metadata=record["metadata"])
        async with slots:
            runner = Runner(
                method, Roles({"policy": policy}), concurrency=1, deadline_s=chance.uniform(*kind.deadline_s)
            )
            return await runner.run_one(task, Sampling(seed=number))

    done = await asyncio.gather(*map(run, range(count)))
    ends: dict[str, Counter[str]] = {name: Counter() for name in KINDS}
    for name, trajectory in zip(list(KINDS) * (count // len(KINDS) + 1), done, strict=False):
        ends[name][trajectory.failure or trajectory.log["verdict"]] += 1
    return ends


def kill_midway(backend: str, count: int) -> tuple[int, dict[str, list[str]]]:
    """Kill a process in the midst of its rollouts. Return how many processes it had, and what is left of them."""
    processes = list_descendants(os.getpid())
    before = read_host(processes)
    words = [sys.executable, "-m", "tests.unit.agentic.coding.leftovers", backend, str(count), NAME]
    child = subprocess.Popen(words, env={**os.environ, "TMPDIR": tempfile.gettempdir()})
    while len(running := list_descendants(child.pid)) < AT_ONCE:
        assert child.poll() is None, "it has ended before there was so much to kill"
        time.sleep(0.05)
    child.kill()
    child.wait()
    deadline = time.monotonic() + 30
    while list_new_processes(processes) and time.monotonic() < deadline:
        time.sleep(0.1)
        # What has ended and lost its parent is ours to wait for, as elsewhere it is the first process's.
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    return len(running), find_new(before, read_host(processes))


if __name__ == "__main__":
    asyncio.run(run_rollouts(WORLD.train_tokenizer(), sys.argv[1], int(sys.argv[2])))
