"""A small model folder whose tokenizer reads everything, and made-up problems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentic.memagent.tiny import start_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_model.build(tmp_path_factory.mktemp("aime") / "model", seed=0)


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Six problems; the answers are 0, 11, ..., 55, zero-padded as in some published files."""
    path = tmp_path / "made-up.jsonl"
    records = [{"id": f"p{i}", "problem": f"What is {i} times 11?", "answer": f"{11 * i:03}"} for i in range(6)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
