from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from core.worlds import find_world


@cache
def train_tokenizer(method: str) -> Any:
    world = find_world(method)
    assert world is not None
    return world.train_tokenizer()


@pytest.fixture(scope="module")
def tokenizer(request: pytest.FixtureRequest) -> Any:
    """The tokenizer of the start model of the method whose folder a test lies in."""
    return train_tokenizer(request.path.parent.name)
