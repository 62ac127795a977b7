from __future__ import annotations

from typing import Any

import pytest

from agentic.compaction.rollout import SPEC, CompactingReader


@pytest.fixture
def method(tokenizer: Any) -> CompactingReader:
    """The method as the preset `tiny` sets it up."""
    return SPEC.build(SPEC.load("tiny"), tokenizer)
