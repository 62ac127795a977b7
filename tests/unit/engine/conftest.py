"""Tiny random models of every architecture, and the reference that the engine is held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests import kit

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
ARCHITECTURES = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen2_tied_yarn": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
    "llama": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
}

Reference = Callable[[Path, Sequence[int], Sequence[int], float], torch.Tensor]


@pytest.fixture(scope="session", params=ARCHITECTURES)
def any_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(request.param, tmp_path_factory.mktemp(request.param), seed=0)


@pytest.fixture(scope="session")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model("qwen2", tmp_path_factory.mktemp("qwen2"), seed=0)


@pytest.fixture(scope="session")
def other_qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model("qwen2", tmp_path_factory.mktemp("other"), seed=1)


def save_model(name: str, folder: Path, seed: int) -> Path:
    config, model, options = ARCHITECTURES[name]
    return kit.save_model(folder, seed, config, model, **options)


@pytest.fixture(scope="session")
def reference() -> Reference:
    """Log-probs of a completion by a full forward of Hugging Face's own model."""
    models: dict[Path, torch.nn.Module] = {}

    def logprobs(folder: Path, prompt: Sequence[int], completion: Sequence[int], temperature: float) -> torch.Tensor:
        if folder not in models:
            models[folder] = AutoModelForCausalLM.from_pretrained(folder).eval()
        with torch.no_grad():
            logits = models[folder](torch.tensor([[*prompt, *completion]])).logits[0].float()
        scores = torch.log_softmax(logits / temperature, dim=-1)[len(prompt) - 1 : -1]
        return scores.gather(1, torch.tensor(completion)[:, None]).squeeze(1)

    return logprobs
