"""A small run with a clock that jumps, few descriptors or little memory ends or says why, and then goes on.

What comes out is the run that had none of it. Part of the long tests: `--long MINUTES`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import REPOSITORY, environment
from tests.e2e.test_resume import assert_same_run

RUN = """
import itertools, random, resource, sys, time
from pathlib import Path
from transformers import AutoConfig, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
from core.train.command import main

kind, value = sys.argv[1], int(sys.argv[2])
if kind == "clock":
    real, rng = time.time, random.Random(0)
    time.time = lambda: real() + rng.uniform(-value, value)
elif kind == "descriptors":
    resource.setrlimit(resource.RLIMIT_NOFILE, (value, value))
elif kind == "memory":
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (value << 20),) * 2)
sys.exit(main(["memagent", *sys.argv[3:]]))
"""
LIMITS = {"clock": (86400,), "descriptors": (8, 12, 20), "memory": (8, 64, 256)}
"""Seconds that the clock jumps, descriptors, and MiB beyond what the imports took."""


def run(kind: str, value: int, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN, kind, str(value), *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=600)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", LIMITS)
def test_a_run_under_a_limit_loses_nothing(
    kind: str, long_s: float, preset: Path, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    arguments = ["--preset", str(preset), "--set", "run.steps=3", "--out"]
    assert run("none", 0, [*arguments, str(tmp_path / "untouched")]).returncode == 0
    for value in LIMITS[kind]:
        out = tmp_path / f"{kind}-{value}"
        limited = run(kind, value, [*arguments, str(out)])
        said = limited.stderr.strip().splitlines()[-1:] or ["nothing"]
        tell(f"{kind} {value}: status {limited.returncode}, {said[0][:200]}")
        assert limited.returncode == 0 or said[0] != "nothing"
        if limited.returncode:
            freely = run("none", 0, [*arguments, str(out)])
            assert freely.returncode == 0, freely.stderr
        assert_same_run(out, tmp_path / "untouched")
