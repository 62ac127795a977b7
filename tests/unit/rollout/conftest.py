"""A random model for the tests that need a real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import save_model


@pytest.fixture(scope="session")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("qwen2"), seed=0)
