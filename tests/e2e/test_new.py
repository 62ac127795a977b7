"""`tokentrue new` of a folder outside of this repository runs and passes its test; so does the example in one file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from examples.grpo_in_one_file import main
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
    assert " 6 passed" in f" {done.stdout.splitlines()[-1]}", done.stdout
    evaluation = f"tokentrue evaluate heldout {{method}} --run {{out}} --data {DATA}/test.jsonl --tasks 6"
    settings = SMALLEST | {"run.seeds": [0, 1], "run.parallel_seeds": 2}
    settings |= {"experiment.evaluate": json.dumps({"test": evaluation})}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "scripts.tokentrue", "run", str(home / "debate"), *words]
    subprocess.run(command, cwd=elsewhere, env=environment(), check=True)
    summary = json.loads((elsewhere / "runs/debate-tiny/summary.json").read_text())
    assert (summary["method"], summary["seeds"]) == ("debate", [0, 1])
    assert summary["variants"].keys() >= {"trained", "untrained", "aimless"}


def test_the_example_runs_and_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for _ in range(2):
        before, after = main(seed=0, cold_steps=8, steps=3, groups=2, size=4)
        assert 0 <= before <= 1
        assert 0 <= after <= 1
        outputs.append(capsys.readouterr().out)
    assert "step   2  reward" in outputs[0]
    assert outputs[0] == outputs[1]
