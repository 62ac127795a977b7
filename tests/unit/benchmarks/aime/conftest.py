"""A small model folder whose tokenizer reads everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentic.memagent.tiny import start_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_model.build(tmp_path_factory.mktemp("aime") / "model", seed=0)
