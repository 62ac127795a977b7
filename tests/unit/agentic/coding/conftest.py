from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentic.coding.world import WORLD
from core.text.tokenizer import load_tokenizer


@pytest.fixture(scope="session")
def coding_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return WORLD.build_model(tmp_path_factory.mktemp("coding") / "model", seed=0)


@pytest.fixture(scope="session")
def tokenizer(coding_model: Path) -> Any:
    return load_tokenizer(coding_model)
