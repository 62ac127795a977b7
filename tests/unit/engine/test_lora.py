"""Low-rank adapters: the start model stays, sampling and training agree, and PEFT reads what is saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from core.config import LoRASection, OptimizerSection
from core.engine import lora, weights
from core.engine.engine import Engine
from core.engine.model import CausalLM, Linear
from core.hub import CheckpointError
from core.train import checkpoint
from core.train.trainer import Trainer
from core.types import Row, Sampling
from tests.unit.conftest import gradients, save_model

SECTION = LoRASection(rank=4, alpha=8)
ROWS = [Row((1, 2, 3, 4, 9), (1, 1), (-4.5, -4.5), 1.0, 0), Row((5, 6, 7), (1,), (-4.5,), -1.0, 1)]
IDS = torch.arange(2, 40)


def load(folder: Path, dtype: str = "float32", section: LoRASection | None = SECTION) -> CausalLM:
    model = weights.load(folder, dtype, "cpu")
    lora.add_adapters(model, section, seed=3)
    return model


def trained(folder: Path, dtype: str = "float32") -> CausalLM:
    model = load(folder, dtype)
    trainer = Trainer(model, OptimizerSection(lr=1e-2, bf16_autocast=False))
    for _ in range(3):
        trainer.grpo_step(ROWS)
    return model


@torch.inference_mode()
def logits(model: CausalLM) -> torch.Tensor:
    engine = Engine(model, max_model_len=64, kv_tokens=64, page_size=64)
    engine.submit(IDS.tolist(), Sampling(max_new_tokens=1, temperature=0.0))
    return engine._compute(*engine.scheduler.schedule())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_new_adapters_change_no_bit_and_trained_ones_leave_the_start_model_as_it_was(any_model, dtype):
    start = weights.load(any_model, dtype, "cpu")
    assert torch.equal(logits(load(any_model, dtype)), logits(start))
    model = trained(any_model, dtype)
    assert not torch.equal(logits(model), logits(start))
    with lora.without_adapters(model):
        assert torch.equal(logits(model), logits(start))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), start.parameters(), strict=True))
    assert len(lora.find_adapters(model)) == 3 * model.config.num_layers + 4 * len(model.config.attending_layers)


def test_a_tied_head_gets_no_adapter(tmp_path):
    """A checkpoint would be without it: what is merged into the head would be merged into the embedding."""
    section = LoRASection(rank=4, alpha=8, targets=("q_proj", "lm_head"))
    load(save_model("qwen2", tmp_path / "apart", seed=0), section=section)
    with pytest.raises(CheckpointError, match="lm_head is the embedding too"):
        load(save_model("qwen2_tied_yarn", tmp_path / "tied", seed=0), section=section)


def test_gradients_are_those_of_the_whole_weights_by_the_chain_rule(any_model):
    """For W + s B A and the gradient G of W: that of B is s G A^T, that of A is s B^T G."""
    model = trained(any_model)
    tensors = lora.merge_weights(model)
    folder = any_model.parent / f"{any_model.name}-merged"
    weights.save(model, folder, like=any_model, tensors=tensors)
    whole, found = gradients(folder, ROWS), gradients(model, ROWS)
    for name, adapter in lora.find_adapters(model).items():
        whole_grad = adapter.scale * whole[f"{name}.weight"]
        close = {"atol": 1e-6, "rtol": 1e-4}
        torch.testing.assert_close(found[f"{name}.lora_B.weight"], whole_grad @ adapter.lora_A.detach().T, **close)
        torch.testing.assert_close(found[f"{name}.lora_A.weight"], adapter.lora_B.detach().T @ whole_grad, **close)
    assert len(found) == 2 * len(lora.find_adapters(model))


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("autocast", [False, True])
def test_an_adapter_adds_its_product_to_any_number_of_rows_under_autocast_too(autocast, rows):
    torch.manual_seed(0)
    linear = Linear(8, 6)
    adapter = linear.adapter = lora.Adapter(linear, SECTION, torch.Generator().manual_seed(0))
    torch.nn.init.normal_(adapter.lora_B)
    x = torch.randn(rows, 8)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = linear(x)
    exact = x @ (linear.weight + adapter.product()).T + linear.bias
    assert y.dtype == (torch.bfloat16 if autocast else torch.float32)
    close = {"atol": 0.05, "rtol": 0.02} if autocast else {"atol": 1e-6, "rtol": 1e-5}
    torch.testing.assert_close(y.float(), exact, **close)
    y.float().sum().backward()
    ones = torch.ones(rows, 6)
    torch.testing.assert_close(adapter.lora_B.grad, adapter.scale * ones.T @ (x @ adapter.lora_A.T), **close)
    torch.testing.assert_close(adapter.lora_A.grad, adapter.scale * adapter.lora_B.T @ ones.T @ x, **close)


def test_a_checkpoint_holds_the_merged_model_and_adapters_that_peft_reads(any_model, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = trained(any_model)
    path = checkpoint.save(tmp_path, 3, model, any_model, {})
    merged = weights.load(path, device="cpu")
    torch.testing.assert_close(logits(merged), logits(model), atol=1e-5, rtol=0)
    base = AutoModelForCausalLM.from_pretrained(any_model)
    theirs = PeftModel.from_pretrained(base, path / lora.FOLDER).eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(IDS[None]).logits[0, -1:], logits(model), atol=1e-5, rtol=0)
    config = json.loads((path / lora.FOLDER / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(any_model)


def test_broken_or_other_adapters_are_refused_by_name(qwen2, tmp_path):
    path = checkpoint.save(tmp_path, 1, load(qwen2), qwen2, {})
    with pytest.raises(CheckpointError, match="other adapters than model"):
        checkpoint.load(path, load(qwen2, section=LoRASection(rank=2)))
    (path / lora.FOLDER / lora.WEIGHTS_FILE).write_bytes(b"broken")
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors: cannot be read"):
        checkpoint.load(path, load(qwen2))
