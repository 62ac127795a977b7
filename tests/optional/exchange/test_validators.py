"""OpenEnv's and Harbor's own validators accept what we export, and we read what their models write."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from core.inspect.dumps import read_dump
from core.inspect.export import main
from tests.kit import require
from tests.unit.inspect.test_export import FORMS, make_record

HERE = Path(__file__).parent
PYTHON = HERE / ".venv/bin/python"
pytestmark = [pytest.mark.optional, pytest.mark.timeout(300)]


def run(*words: str | Path) -> str:
    require(PYTHON.exists(), f"needs OpenEnv and Harbor: bash {HERE.name}/setup.sh")
    command = [PYTHON, HERE / "validate.py", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_thousand_rollouts_are_accepted(tmp_path: Path) -> None:
    record = make_record(tmp_path / "rollouts.jsonl.gz", 1000)
    for form in FORMS:
        assert main([str(record), "--to", form, "--out", str(tmp_path / form)]) == 0
    tokens = sum(len(turn.sampled) for rollout in read_dump(record) for turn in rollout.turns)
    assert json.loads(run("read", *(tmp_path / form for form in FORMS))) == [1000, tokens, 1000, tokens]


def test_what_their_models_write_is_read(tmp_path: Path) -> None:
    run("write", tmp_path / "theirs.jsonl")
    trace, trajectory = read_dump(tmp_path / "theirs.jsonl")
    for rollout in (trace, trajectory):
        assert (rollout.prompts, rollout.turns[0].sampled, rollout.turns[0].logprobs) == (
            [[5, 6]],
            [7, 8],
            [-0.5, -1.5],
        )
        assert rollout.turns[0].trained
