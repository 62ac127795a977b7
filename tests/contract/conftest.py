"""What the contract suites share: a tiny random model, saved as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import save_model

# A large `initializer_range`, so that greedy decoding meets no near ties, as it would at 0.02. One head of 32 numbers,
# the fewest that vLLM's CPU kernels take.
SIZES = {
    "vocab_size": 128,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,
}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("tiny"), seed=0, **SIZES)


@pytest.fixture(scope="session")
def other_tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture with other weights."""
    return save_model(tmp_path_factory.mktemp("other"), seed=1, **SIZES)
