"""What the contract suites share: a tiny random model, saved as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import save_model

# A large `initializer_range`, so that greedy decoding meets no near ties, as it would at 0.02.
SIZES = {"vocab_size": 128, "intermediate_size": 64, "max_position_embeddings": 4096, "initializer_range": 0.2}
VLLM_SIZES = SIZES | {"num_attention_heads": 1, "num_key_value_heads": 1}
"""Makes one head of 32 numbers, the fewest that vLLM's CPU kernels take."""


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    sizes = VLLM_SIZES if pytestconfig.getoption("--vllm-url") else SIZES
    return save_model(tmp_path_factory.mktemp("tiny"), seed=0, **sizes)


@pytest.fixture(scope="session")
def other_tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture with other weights."""
    return save_model(tmp_path_factory.mktemp("other"), seed=1, **SIZES)
