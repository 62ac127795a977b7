"""A run starts its own rollout servers, goes on when one is killed, and leaves none."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from core.runs.files import read_jsonl
from tests import kit
from tests.e2e.conftest import Launcher

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_a_run_goes_on_when_one_of_its_servers_is_killed(launcher: Launcher, preset: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    overrides = ["inference.replicas=2", "inference.replica_args=--device cpu", "run.eval_every=1"]
    launcher.start(["--preset", str(preset), "--out", str(run), *(word for o in overrides for word in ("--set", o))])
    metrics = run / "seed-0" / "metrics.jsonl"
    kit.wait_until(lambda: metrics.is_file() and metrics.stat().st_size, 120.0)
    servers = find_servers(run)
    assert len(servers) == 2
    os.kill(servers[0], signal.SIGKILL)
    assert launcher.wait() == 0, launcher.log.read_text()
    steps = [record for record in read_jsonl(metrics) if record["stage"] == "train"]
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert sum(step["servers_left_out"] for step in steps) >= 1
    assert all(not step["failures"] for step in steps)
    kit.wait_until(lambda: not find_servers(run))


def find_servers(run: Path) -> list[int]:
    """Return the processes of our servers that write into the run's folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            output = os.readlink(folder / "fd" / "1")
        except OSError:  # it has ended, or is somebody else's
            continue
        if words[1:3] == [b"-m", b"core.engine.server"] and output.startswith(str(run)):
            found.append(int(folder.name))
    return found
