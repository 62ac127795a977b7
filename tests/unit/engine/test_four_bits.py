"""Weights in 4 bits below adapters: sampling, training and what is saved see one and the same model."""

from __future__ import annotations

import weakref
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from core.algorithms.grpo import GRPOConfig
from core.config import LoRASection, OptimizerSection, RecipeError
from core.engine import footprint, four_bits, lora, weights
from core.engine.model import CausalLM, Linear
from core.hub import CheckpointError
from core.rollout.method import method_spec
from core.runs.run_folder import StepLog
from core.train import checkpoint
from core.train.trainer import Trainer
from core.train.warm_start import run_warm_start
from core.types import Row, Sampling
from tests import kit
from tests.unit.conftest import DELTA_NET, gradients, sample_rows

SECTION = LoRASection(rank=4, alpha=8, load_in_4bit=True)
SIZES = {"hidden_size": 64, "intermediate_size": 192, "head_dim": 16}
PROMPTS = [tuple(range(3, 40)), tuple(range(3, 20)), (7, 8, 9)]
NF4 = (-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0, 0.0795803, 0.1609302,
       0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0)  # fmt: skip
"""Lists the values of arXiv 2305.14314, appendix E."""


@pytest.fixture(scope="module", params=["qwen2", "qwen3_5"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kinds = (Qwen3_5TextConfig, Qwen3_5ForCausalLM) if request.param == "qwen3_5" else ()
    sizes = SIZES | (DELTA_NET if kinds else {})
    return kit.save_model(tmp_path_factory.mktemp(request.param), 0, *kinds, **sizes)


def load(folder: Path, dtype: str = "float32", section: LoRASection = SECTION) -> CausalLM:
    model = weights.load(folder, dtype, "cpu", section)
    lora.add_adapters(model, section, seed=3)
    return model


def make_trainer(model: CausalLM, lr: float = 1e-2) -> Trainer:
    section = OptimizerSection(lr=lr, weight_decay=0.0, clip_grad=1e9, bf16_autocast=False)
    return Trainer(model, section, GRPOConfig(kl_loss_coef=0.1))


def sample(model: CausalLM, prompts: list[tuple[int, ...]] = PROMPTS) -> list[Row]:
    return sample_rows(model, prompts, Sampling(max_new_tokens=10, seed=1))


def find_packed(model: CausalLM) -> dict[str, four_bits.FourBits]:
    return {n: m.four_bits for n, m in model.named_modules() if isinstance(m, Linear) and m.four_bits is not None}


def test_the_values_are_those_of_the_paper_and_scales_cost_a_half_bit():
    torch.manual_seed(0)
    weight = 0.02 * torch.randn(128, 512)
    packed = four_bits.FourBits(weight)
    blocks, restored = weight.view(-1, 64), packed.restore().view(-1, 64)
    scales = blocks.abs().amax(dim=1, keepdim=True)
    nearest = torch.tensor(NF4)[(blocks[:, :, None] / scales[:, :, None] - torch.tensor(NF4)).abs().argmin(dim=-1)]
    # A scale has 8 bits: it is off by a few percent of the spread of all scales.
    assert (restored - nearest * scales).abs().max() < 0.02 * scales.mean()
    assert four_bits.packed_bytes(weight.numel()) / weight.numel() == pytest.approx(0.516, abs=0.001)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("section", [SECTION, LoRASection(rank=4, alpha=8)], ids=["4 bits", "whole weights"])
def test_the_trainer_computes_what_the_engine_sampled_and_the_start_model_needs_no_copy(folder, dtype, section):
    model = load(folder, dtype, section)
    trainer = make_trainer(model)
    assert trainer.reference is None
    for step in range(3):
        rows = sample(model)
        assert sample(model, PROMPTS[1:2])[0].tokens == rows[1].tokens  # alone and in a batch
        stats = trainer.grpo_step(rows)
        assert stats["train_rollout_logprob_abs_diff"] < (1e-5 if dtype == "float32" else 0.02)
        assert (stats["kl_loss"] > 0) == (step > 0)


def test_what_is_saved_is_the_model_that_sampled_and_its_gradients_are_the_adapters(folder, tmp_path):
    model = load(folder)
    trainer = make_trainer(model)
    for _ in range(2):
        trainer.grpo_step(sample(model))
    rows = sample(model)
    path = checkpoint.save(tmp_path, 2, model, folder, {"trainer": trainer.state()})
    merged = weights.load(path, device="cpu")
    for ours, theirs in zip(rows, sample(merged), strict=True):
        assert ours.tokens == theirs.tokens
        torch.testing.assert_close(torch.tensor(ours.logprobs), torch.tensor(theirs.logprobs), atol=1e-5, rtol=0)

    whole, found = gradients(path, rows), gradients(model, rows)
    for name, adapter in lora.find_adapters(model).items():
        expected = adapter.scale * whole[f"{name}.weight"] @ adapter.lora_A.detach().T
        torch.testing.assert_close(found[f"{name}.lora_B.weight"], expected, atol=1e-6, rtol=1e-4)

    again = load(folder)
    make_trainer(again).load_state(checkpoint.load(path, again)["trainer"])
    assert sample(again) == rows


def test_a_pass_in_autocast_has_one_number_format_and_merging_restores_one_weight_at_a_time(folder, monkeypatch):
    model, alive = load(folder), []
    with torch.autocast("cpu", torch.bfloat16):
        for linear in (module for module in model.modules() if isinstance(module, Linear) and module.four_bits):
            linear(torch.ones(3, linear.in_features))
    restore = four_bits.FourBits.restore

    def watch(self: four_bits.FourBits) -> torch.Tensor:
        weight = restore(self)
        alive.append(weakref.ref(weight))
        assert sum(each() is not None for each in alive) <= 2  # the one before, until its name takes this one
        return weight

    monkeypatch.setattr(four_bits.FourBits, "restore", watch)
    lora.merge_weights(model, torch.bfloat16)
    assert len(alive) == len(find_packed(model))


def test_a_model_with_nothing_to_pack_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="packs no weight of this model"):
        weights.load(kit.save_model(tmp_path, 0), device="cpu", adapters=SECTION)


def test_all_but_the_head_is_packed_as_planned_and_shared_by_copies(folder):
    model = weights.load(folder, "bfloat16", "cpu", SECTION)
    packed = find_packed(model)
    assert "lm_head" not in packed
    assert packed.keys() >= {f"model.layers.1.mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")}
    kept = [(each.packed, each.state.absmax, each.state.state2.absmax) for each in packed.values()]
    stored = sum(tensor.nbytes for tensors in kept for tensor in tensors)
    plain = sum(parameter.nbytes for parameter in model.parameters())
    assert footprint.parameter_bytes(model.config, torch.bfloat16, load_in_4bit=True) == stored + plain
    assert all(find_packed(deepcopy(model))[name] is each for name, each in packed.items())


def test_a_warm_start_that_4_bits_would_round_away_is_refused(tmp_path):
    recipe = method_spec("memagent").load("tiny", ["model.lora={load_in_4bit: true}"])
    with pytest.raises(RecipeError, match="load_in_4bit: not beside warm_start"):
        run_warm_start(recipe, tmp_path / "start", StepLog(tmp_path / "metrics.jsonl"))


def test_a_missing_package_is_named_with_its_command(folder, monkeypatch):
    monkeypatch.setattr(four_bits, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"load_in_4bit needs a package: pip install bitsandbytes==0\.50\.2"):
        weights.load(folder, device="cpu", adapters=SECTION)
