"""`tokentrue new` of a folder outside of this repository: its test passes, and it runs at its smallest scale."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import new
from tests.e2e.conftest import environment
from tests.e2e.test_tiny import SMALLEST

DATA = "runs/data/debate-tiny"

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_a_method_of_ones_own_is_tested_trained_by_two_processes_and_evaluated(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "a place", tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert new.main([str(home / "debate")]) == 0
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "debate"]
    done = subprocess.run(pytest_command, cwd=home, env=environment(), text=True, capture_output=True)
    assert " 5 passed" in f" {done.stdout.splitlines()[-1]}", done.stdout
    evaluation = f"tokentrue evaluate heldout {{method}} --run {{out}} --data {DATA}/test.jsonl --tasks 6"
    settings = SMALLEST | {"run.seeds": [0, 1], "run.parallel_seeds": 2}
    settings |= {"experiment.evaluate": json.dumps({"test": evaluation})}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "scripts.tokentrue", "run", str(home / "debate"), *words]
    subprocess.run(command, cwd=elsewhere, env=environment(), check=True)
    summary = json.loads((elsewhere / "runs/debate-tiny/summary.json").read_text())
    assert (summary["method"], summary["seeds"]) == ("debate", [0, 1])
    assert summary["variants"].keys() >= {"trained", "untrained", "aimless"}
