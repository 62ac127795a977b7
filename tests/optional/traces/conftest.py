"""What the clients of all trackers are given to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.runs.fake_policy import record_run


@pytest.fixture
def run(tokenizer: Any, tmp_path: Path) -> Path:
    """A run folder with two recorded steps, whose rollouts have called tools."""
    call = {"tool": "search", "seconds": 0.5}
    return record_run(tmp_path / "run", tokenizer, lambda place: {"calls": [call] * place})
