"""The tiny tokenizer, and MemAgent against a scripted policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentic.memagent.tiny import start_model
from core.text.tokenizer import load_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = start_model.build(tmp_path_factory.mktemp("tiny") / "model", seed=0)
    return load_tokenizer(folder)
