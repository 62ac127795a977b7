from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentic.memagent.world import WORLD
from core.text.tokenizer import load_tokenizer


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the tiny model, whose tokenizer has a chat template and prompt tags that are special tokens."""
    return WORLD.build_model(tmp_path_factory.mktemp("tiny") / "model", seed=0)


@pytest.fixture(scope="session")
def tokenizer(tiny_folder: Path) -> Any:
    return load_tokenizer(tiny_folder)
