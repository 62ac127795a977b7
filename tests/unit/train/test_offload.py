"""An offloaded run takes the steps of an ordinary one, to the last bit, and resumes so."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from core.config import LoRASection, OptimizerSection
from core.engine import weights
from core.engine.lora import add_adapters
from core.engine.model import CausalLM
from core.train import checkpoint
from core.train.trainer import Trainer
from tests.unit.train.test_trainer import make_rows, same, snapshot

LORA = LoRASection(rank=4)
each_kind = pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "adapters"])
each_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def make_trainer(folder: Path, dtype: str, lora: LoRASection | None, offload: bool = True) -> Trainer:
    """Make a trainer whose batches are cut into many packs, and whose gradients are clipped."""
    model = weights.load(folder, dtype, "cpu")
    add_adapters(model, lora)
    section = OptimizerSection(lr=3e-3, clip_grad=0.1, max_tokens_per_pack=40, cpu_offload=offload)
    return Trainer(model, section, start=folder)


def optimized(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {str(i): weight.detach().clone() for i, weight in enumerate(trainer._optimized)}


@pytest.mark.parametrize("any_model", ["qwen2_tied_yarn", "qwen3_5"], indirect=True)
@each_kind
@each_dtype
def test_offloaded_steps_are_those_of_an_ordinary_run_to_the_last_bit(any_model, dtype, lora):
    ordinary, offloaded = (make_trainer(any_model, dtype, lora, offload) for offload in (False, True))
    start, places = optimized(offloaded), [p.data_ptr() for p in offloaded.model.parameters()]
    for seed in range(4):
        stats = ordinary.grpo_step(make_rows(seed))
        assert stats["grad_norm"] > 0.1  # it is clipped
        assert offloaded.grpo_step(make_rows(seed)) == stats
    assert same(snapshot(ordinary.model), snapshot(offloaded.model))
    assert same(optimized(ordinary), optimized(offloaded))
    assert not any(torch.equal(start[name], now) for name, now in optimized(offloaded).items())
    trained = [weight for _, weight in offloaded._copies]
    assert len(trained) == len(offloaded._optimized)
    assert [p.data_ptr() for p in offloaded.model.parameters()] == places  # where the engine reads them
    assert {p.data_ptr() for p in offloaded._optimized}.isdisjoint([*places, *(p.data_ptr() for p in trained)])
    assert all(weight.grad is None for weight in trained)


@each_kind
@each_dtype
def test_an_offloaded_run_resumes_bit_for_bit(qwen2, tmp_path, dtype, lora):
    trainer = make_trainer(qwen2, dtype, lora)
    for seed in range(2):
        trainer.grpo_step(make_rows(seed))
    path = checkpoint.save(tmp_path, 2, trainer.model, qwen2, {"trainer": trainer.state()})
    again = make_trainer(qwen2, dtype, lora)
    again.load_state(checkpoint.load(path, again.model)["trainer"])
    for seed in range(2, 4):
        assert again.grpo_step(make_rows(seed)) == trainer.grpo_step(make_rows(seed))
    assert same(snapshot(trainer.model), snapshot(again.model))
    assert same(optimized(trainer), optimized(again))


@pytest.mark.parametrize("offload", [False, True], ids=["ordinary", "offloaded"])
@each_dtype
def test_a_gradient_that_is_not_finite_leaves_weights_and_copies_alone(qwen2, dtype, offload):
    trainer = make_trainer(qwen2, dtype, None, offload)
    before, copies = snapshot(trainer.model), optimized(trainer)
    stats = trainer.grpo_step([replace(row, advantage=float("nan")) for row in make_rows()])
    assert stats["nonfinite_steps"] == 1.0
    assert same(before, snapshot(trainer.model))
    assert same(copies, optimized(trainer))
    assert trainer.grpo_step(make_rows())["nonfinite_steps"] == 0.0
    assert not same(before, snapshot(trainer.model))


def test_the_state_of_a_run_on_a_card_is_read_into_the_machines_memory(qwen2, tmp_path, monkeypatch):
    trainer = make_trainer(qwen2, "float32", None)
    trainer.grpo_step(make_rows())
    path = checkpoint.save(tmp_path, 1, trainer.model, qwen2, {"trainer": trainer.state()})
    monkeypatch.setattr(CausalLM, "device", torch.device("cuda"))
    state = checkpoint.load(path, trainer.model)["trainer"]
    moments = state["optimizer"]["state"].values()
    assert {tensor.device.type for each in moments for tensor in each.values()} == {"cpu"}
    assert {copy.device.type for copy in state["float32_copies"]} == {"cpu"}


def test_8_bit_moments_are_not_offloaded_and_the_error_names_both_fixes():
    fixes = "set optimizer.cpu_offload=false, or optimizer.name=adamw"
    with pytest.raises(ValueError, match=re.escape(fixes)):
        OptimizerSection(lr=1.0, name="adamw8bit", cpu_offload=True)
