"""Tiny random models of every architecture, and the reference that the engine is held against."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from core.config import OptimizerSection
from core.engine import weights
from core.engine.cache import PagedCache
from core.engine.engine import Engine
from core.engine.model import CausalLM, ModelConfig
from core.train.trainer import Trainer
from core.types import Completion, Row, Sampling
from tests import kit

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
DELTA_NET = {
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
}
ARCHITECTURES = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen2_tied_yarn": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
    "llama": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "qwen3_5": (Qwen3_5TextConfig, Qwen3_5ForCausalLM, DELTA_NET),
}

MODEL_CONFIG = ModelConfig(8, 4, 4, 1, 1, 1, 1, 1e-6, 64, False, False, False, False, False, (1.0,), 1.0)
"""The smallest model: one layer, one head, one coordinate."""

Reference = Callable[[Path, Sequence[int], Sequence[int], float], torch.Tensor]


@pytest.fixture(scope="session", params=ARCHITECTURES)
def any_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(request.param, tmp_path_factory.mktemp(request.param), seed=0)


@pytest.fixture(scope="session", params=[name for name in ARCHITECTURES if name != "qwen3_5"])
def own_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose layers are ours."""
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


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch compute with so many threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def watch_gradients(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Return a mapping that gets the gradients of what is trained, by name, at each step of the optimizer."""
    found: dict[str, torch.Tensor] = {}
    trainer.optimizer.register_step_pre_hook(
        lambda *_: found.update({name: p.grad.clone() for name, p in trainer._by_name.items()})
    )
    return found


def drain(engine: Engine) -> None:
    while engine.has_work():
        engine.step()


def complete(folder: Path, prompt: Sequence[int], sampling: Sampling) -> Completion:
    """Sample one completion on an engine that has nothing else to do."""
    engine = Engine.from_pretrained(folder, device="cpu", max_model_len=128, kv_tokens=128)
    [completion] = engine.generate([prompt], sampling)
    return completion


def sample_rows(model: CausalLM, prompts: Sequence[tuple[int, ...]], sampling: Sampling, **options: Any) -> list[Row]:
    """Sample a completion of each prompt, and return them as rows of rollouts that were good and bad by turns."""
    engine = Engine(model, **{"max_model_len": 64, "kv_tokens": 640, **options})
    return [
        Row((*p, *c.token_ids), (1,) * len(c.token_ids), c.logprobs, (-1.0) ** n, rollout_id=n)
        for n, (p, c) in enumerate(zip(prompts, engine.generate(prompts, sampling), strict=True))
    ]


def count_idle(cache: PagedCache) -> int:
    """Count the pages that no sequence holds."""
    return len(cache._idle)


def stamps(tokens: Sequence[int]) -> torch.Tensor:
    """Stand for keys: each depends on all tokens up to it, as a real one does."""
    return torch.tensor([float(hash(tuple(tokens[: end + 1])) % 100_003) for end in range(len(tokens))])


def find_stamps(cache: PagedCache, pages: Sequence[int], length: int) -> torch.Tensor:
    """Return where a sequence's tokens lie in the cache."""
    return torch.tensor([pages[i // cache.page_size] * cache.page_size + i % cache.page_size for i in range(length)])


def compute(cache: PagedCache, pages: Sequence[int], tokens: Sequence[int], start: int = 0) -> None:
    """Write stamps where the keys and values of the tokens from `start` on belong."""
    places = find_stamps(cache, pages, len(tokens)).long()[start:]
    cache.kv[:, :, places, 0, 0] = stamps(tokens)[start:]


def read_stamps(cache: PagedCache, pages: Sequence[int], length: int) -> torch.Tensor:
    return cache.kv[0, 0, find_stamps(cache, pages, length).long(), 0, 0]


def gradients(
    model: CausalLM | Path, rows: Sequence[Row], *, max_tokens: int = 1024, checkpointing: bool = False, **options: Any
) -> Any:
    """Return the gradient of one step of a model, or of that in a folder, by parameter name, as AdamW gets it."""
    model = weights.load(model, device="cpu") if isinstance(model, Path) else model
    still: Any = {"lr": 0.0, "weight_decay": 0.0, "clip_grad": 1e9, "bf16_autocast": False}
    section = OptimizerSection(max_tokens_per_pack=max_tokens, gradient_checkpointing=checkpointing, **still)
    trainer = Trainer(model, section, **options)
    found = watch_gradients(trainer)
    trainer.grpo_step(rows)
    return found
