from __future__ import annotations

from typing import Any

import pytest

from agentic.codescout.world import WORLD


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return WORLD.train_tokenizer()
