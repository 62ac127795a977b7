"""Small runs of four methods are killed, stopped and slowed at random moments, as often as `--long MINUTES` allows.

They are MemAgent, AgentFlow, compaction and the agents. What comes out is the run that was never touched: no task is
lost or repeated, and no process, mount or file is left. agentic/coding is not among them. ToolOrchestra has services,
which tests/e2e/test_toolorchestra_tiny.py kills; tests/e2e/test_evaluators_resume.py kills the evaluators.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from core.data import write_jsonl
from tests import kit
from tests.e2e.conftest import Launcher
from tests.e2e.test_resume import assert_same_run

SIZES = {
    "warm_start.steps": 4, "warm_start.copy_steps": 1, "warm_start.batch_size": 4, "rollout.tasks_per_step": 2,
    "rollout.group_size": 2, "run.steps": 4, "run.eval_every": 2, "run.eval_tasks": 2, "run.save_every": 1,
    "run.record_every": 1, "run.seeds": [0], "model.device": "cpu", "model.dtype": "float32",
}  # fmt: skip
LOOKUP = {"run": "agentic.agent.tiny.lookup_agent.run", "reward": "agentic.agent.rewards.exact", "max_turns": 3}
OWN = {
    "agentflow": {"model.max_model_len": 384},
    "compaction": {"warm_start.lookup_steps": 1},
    "agent": {"agent.agents": json.dumps({"lookup": LOOKUP})},
}
PACES = ("as it is", "stopped for a second", "slowed")


def make_arguments(method: str, folder: Path, preset: Path) -> list[str]:
    """Make the model and the data of a small run, and return its arguments."""
    if method == "memagent":
        return ["--preset", str(preset)]
    tiny = f"agentic.{method}.tiny"
    import_module(f"{tiny}.start_model").build(folder / "model", seed=0)
    generate = import_module(f"{tiny}.tasks").generate
    pages = {"compaction": [(4, 6)]}.get(method, [])
    for split in ("train", "dev"):
        write_jsonl(folder / f"{split}.jsonl", generate(split, 6, *pages))
    files = {"data.train": folder / "train.jsonl", "data.eval": folder / "dev.jsonl", "model.path": folder / "model"}
    values = SIZES | OWN[method] | files
    return ["--preset", "tiny", *(word for key, value in values.items() for word in ("--set", f"{key}={value}"))]


def list_children() -> set[int]:
    """List our child processes that run. Orphans become ours, so nothing that a run starts can be missed."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    lists = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    return {int(pid) for text in lists for pid in text.split() if kit.is_running(int(pid))}


def list_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def pause(pid: int, rng: random.Random, pace: str) -> None:
    """Stop the process and let it go on, once for long or often for short."""
    for _ in range({"as it is": 0, "stopped for a second": 1, "slowed": 20}[pace]):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.0 if pace == "stopped for a second" else 0.05)
        os.kill(pid, signal.SIGCONT)
        time.sleep(rng.uniform(0.0, 0.05))


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("method", ["memagent", *OWN])
def test_a_run_ends_as_one_that_was_not_touched(
    method: str,
    long_s: float,
    launcher: Launcher,
    preset: Path,
    isolation: None,
    tmp_path: Path,
    tell: Callable[[str], None],
) -> None:
    arguments = make_arguments(method, tmp_path, preset)
    children, mounts = list_children(), Path("/proc/self/mountinfo").read_text()
    untouched = tmp_path / "untouched"
    started = time.monotonic()
    launcher.start([*arguments, "--out", str(untouched)], method)
    assert launcher.wait() == 0, launcher.log.read_text()
    whole, deadline = time.monotonic() - started, time.monotonic() + long_s
    rng, paces, kills, runs = random.Random(method), Counter[str](), 0, 0
    while time.monotonic() < deadline:
        run, status = tmp_path / f"run-{runs}", None
        while status != 0:
            pid, pace = launcher.start([*arguments, "--out", str(run)], method), rng.choice(PACES)
            if time.monotonic() < deadline:
                time.sleep(rng.uniform(0.02, 0.8) * whole)
                pause(pid, rng, pace)
                launcher.kill(pid)
            status = launcher.wait()
            assert status in (0, -signal.SIGKILL), launcher.log.read_text()
            kills += status != 0
            paces[pace] += 1
        assert_same_run(run, untouched)
        assert list_files(run) == list_files(untouched)
        runs += 1
    kit.wait_until(lambda: list_children() == children)  # what sees its parent gone needs a moment to end
    assert Path("/proc/self/mountinfo").read_text() == mounts
    tell(f"{method}: {kills} kills in {runs} runs ({dict(paces)}); lost 0, repeated 0, left 0")
    assert kills > 0
