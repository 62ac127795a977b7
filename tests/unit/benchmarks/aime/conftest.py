"""Made-up problems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Six problems; the answers are 0, 11, ..., 55, zero-padded as in some published files."""
    path = tmp_path / "made-up.jsonl"
    records = [{"id": f"p{i}", "problem": f"What is {i} times 11?", "answer": f"{11 * i:03}"} for i in range(6)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
