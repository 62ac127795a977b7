"""Hugging Face -> our trainer -> Hugging Face: what was not trained keeps its bits, what was computes the same logits.

tests/optional/megatron_cpu goes on from here to Megatron's distributed checkpoint and back.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from core.algorithms.grpo import GRPOConfig
from core.config import OptimizerSection
from core.engine import weights
from core.train import checkpoint
from core.train.packing import pack_rows
from core.train.trainer import Trainer
from core.types import Row

IDS = tuple((7 * i + 3) % 96 for i in range(60))
ROWS = [Row(IDS[:9], (1, 1, 0), (-4.5, -4.4, -4.6), 1.0, 0), Row(IDS[9:16], (1, 1), (-4.5, -4.7), -1.0, 1)]


def train(folder: Path, checkpoints: Path, lr: float, dtype: str = "float32") -> Path:
    """The checkpoint after one GRPO step of which nothing but the learning rate could be zero."""
    model = weights.load(folder, dtype=dtype, device="cpu")
    trainer = Trainer(
        model, OptimizerSection(lr=lr, weight_decay=0.1), GRPOConfig(kl_loss_coef=0.01, entropy_coef=0.01)
    )
    assert trainer.grpo_step(ROWS)["grad_norm"] > 0
    return checkpoint.save(checkpoints, 1, trainer.model, folder, {"trainer": trainer.state()})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_at_rate_zero_keeps_every_bit(any_model, tmp_path, dtype):
    source = tmp_path / "source"
    weights.save(weights.load(any_model, dtype=dtype, device="cpu"), source, like=any_model)
    saved = train(source, tmp_path / "checkpoints", lr=0.0, dtype=dtype)
    before, after = (load_file(folder / "model.safetensors") for folder in (source, saved))
    assert before.keys() == after.keys()
    assert {tensor.dtype for tensor in after.values()} == {getattr(torch, dtype)}
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_trained_checkpoint_gives_the_same_logits_in_transformers(any_model, tmp_path):
    saved = train(any_model, tmp_path, lr=1e-2)
    before, after = (load_file(folder / "model.safetensors") for folder in (any_model, saved))
    assert not any(torch.equal(before[name], after[name]) for name in before)
    model = weights.load(saved, device="cpu")
    (pack,) = pack_rows([Row(IDS, (1,), (0.0,), 1.0, 0)], max_tokens=100, device=model.device)
    reference = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32).eval()
    with torch.no_grad():
        ours = model.logits(model(pack.ids_T, pack.positions_T, pack.attend))
        theirs = reference(torch.tensor([IDS])).logits[0]
    assert len(ours) == len(IDS) - 1  # the last token predicts nothing that a row needs
    torch.testing.assert_close(ours, theirs[:-1], atol=1e-5, rtol=0)
