"""The engine and the trainer on a GPU, against Hugging Face's forward and against themselves on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from core.algorithms.grpo import GRPOConfig
from core.config import LoRASection, OptimizerSection
from core.engine import lora, varlen, weights
from core.engine.engine import Engine
from core.train import checkpoint, packing
from core.train.trainer import Trainer
from core.types import Row, Sampling
from tests import kit
from tests.unit.conftest import drain, watch_gradients
from tests.unit.engine import test_any_decoder as other_families
from tests.unit.train import test_optimizer
from tests.unit.train.test_optimizer import needs_torchao
from tests.unit.train.test_packing import make_rows

pytestmark = [pytest.mark.optional, pytest.mark.skipif(not torch.cuda.is_available(), reason=kit.CUDA)]
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}


@pytest.fixture(autouse=True)
def fresh_graphs() -> Iterator[None]:
    yield
    torch.compiler.reset()  # after eight graphs of one function PyTorch compiles it no more


def sample_all(
    folder: Path, dtype: str, device: str = "cuda"
) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]]:
    """(prompt, tokens, log-probs) of uneven requests, eight of which share a prompt."""
    engine = Engine.from_pretrained(folder, dtype=dtype, device=device, max_model_len=128, kv_tokens=128 * 16)
    prompts = [tuple(range(5 + i, 25 + 4 * i)) for i in range(8)] + [tuple(range(40, 90))] * 8
    requests = [
        engine.submit(p, Sampling(temperature=0.8, max_new_tokens=8 + i, seed=i)) for i, p in enumerate(prompts)
    ]
    drain(engine)
    completions = [request.completion for request in requests]
    return [(p, c.token_ids, c.logprobs) for p, c in zip(prompts, completions, strict=True) if c is not None]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_logprobs_are_those_of_a_full_forward(any_model, dtype):
    model = AutoModelForCausalLM.from_pretrained(any_model, dtype=getattr(torch, dtype)).cuda().eval()
    samples = sample_all(any_model, dtype)
    assert len(samples) == 16
    for prompt, tokens, logprobs in samples:
        ids = torch.tensor([[*prompt, *tokens]], device="cuda")
        with torch.no_grad():
            logits = model(ids).logits[0, len(prompt) - 1 : -1].float() / 0.8
        expected = torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None]).squeeze(1).cpu()
        torch.testing.assert_close(torch.tensor(logprobs), expected, atol=TOLERANCE[dtype], rtol=0)


def test_a_seed_gives_the_same_tokens_again(any_model):
    assert sample_all(any_model, "float32") == sample_all(any_model, "float32")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs: run it on a machine with two")
def test_an_engine_on_another_gpu_than_the_current_one_samples_the_same(qwen2):
    assert sample_all(qwen2, "float32", "cuda:1") == sample_all(qwen2, "float32", "cuda:0")


@pytest.mark.parametrize("family", other_families.FAMILIES)
def test_other_families_are_transformers_on_the_cpu(family, tmp_path):
    folder = other_families.save_model(family, other_families.FAMILIES[family], tmp_path)
    theirs, model = other_families.load_theirs(folder), weights.load(folder, device="cuda")
    for row in other_families.sample(model, max_prefill_tokens=7):
        expected = other_families.score(theirs, row)
        torch.testing.assert_close(torch.tensor(row.logprobs), expected.detach(), atol=1e-4, rtol=0)
    (on_gpu, gpu_weights), (on_cpu, cpu_weights) = (take_step(folder, device) for device in ("cuda", "cpu"))
    assert on_gpu["grad_norm"] == pytest.approx(on_cpu["grad_norm"], rel=1e-3)
    changed = torch.cat([(gpu_weights[name] - weight).flatten() for name, weight in cpu_weights.items()])
    assert changed.abs().quantile(0.99) < 1e-4  # Adam makes a gradient that is all rounding large


def take_step(
    folder: Path, device: str, *, compiled: bool = False, adapters: LoRASection | None = None, **options: bool | str
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    model = weights.load(folder, device=device)
    lora.add_adapters(model, adapters)
    section = OptimizerSection(lr=1e-3, max_tokens_per_pack=64, bf16_autocast=False, **options)
    trainer = Trainer(model, section, GRPOConfig(kl_loss_coef=0.01), compiled=compiled)
    shared = tuple(range(3, 23))
    rows = [
        Row((*shared, *range(30, 36 + i)), (1,) * (6 + i), (-3.0,) * (6 + i), (-1.0) ** i, rollout_id=i // 2)
        for i in range(6)
    ]
    stats = trainer.grpo_step(rows)
    return stats, {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}


def test_new_weights_reach_the_recorded_decode_steps(qwen2, other_qwen2):
    engine = Engine.from_pretrained(qwen2, device="cuda", max_model_len=128, kv_tokens=1024)
    fresh = Engine.from_pretrained(other_qwen2, device="cuda", max_model_len=128, kv_tokens=1024)
    for update in (False, True):
        if update:
            engine.set_weights(weights.read(engine.model, other_qwen2))
        requests = [each.submit(tuple(range(20)), Sampling(max_new_tokens=40, seed=0)) for each in (engine, fresh)]
        drain(engine)
        drain(fresh)
        assert (requests[0].completion.token_ids == requests[1].completion.token_ids) == update


@pytest.mark.parametrize(
    ("options", "adapters"),
    [
        ({}, None),
        ({"gradient_checkpointing": True}, None),
        ({"compiled": True}, None),
        ({"gradient_checkpointing": True, "compiled": True}, None),
        ({}, LoRASection(rank=4, targets=("q_proj", "v_proj", "down_proj"))),
    ],
)
def test_a_step_is_that_of_the_cpu(own_model, options, adapters):
    on_gpu, gpu_weights = take_step(own_model, "cuda", adapters=adapters, **options)
    on_cpu, cpu_weights = take_step(own_model, "cpu", adapters=adapters)
    assert on_gpu["grad_norm"] == pytest.approx(on_cpu["grad_norm"], rel=1e-3)
    assert on_gpu["loss"] == pytest.approx(on_cpu["loss"], abs=1e-5)
    for name, tensor in cpu_weights.items():
        torch.testing.assert_close(gpu_weights[name], tensor, atol=1e-4, rtol=0)


@needs_torchao
def test_moments_of_8_bits_learn_as_whole_ones(tmp_path):
    folder, losses = kit.save_model(tmp_path, 0, **test_optimizer.SIZES), {}
    for name in ("adamw", "adamw8bit"):
        section = test_optimizer.SECTION.model_copy(update={"name": name, "max_tokens_per_pack": 32})
        trainer = Trainer(weights.load(folder, "bfloat16", "cuda"), section)
        losses[name] = [trainer.supervised_step(test_optimizer.EXAMPLES)["loss"] for _ in range(20)]
    assert losses["adamw8bit"][-1] == pytest.approx(losses["adamw"][-1], rel=0.1)
    assert losses["adamw8bit"][-1] < 0.1 * losses["adamw8bit"][0]


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_and_bfloat16_weights_take_a_finite_step(any_model, compiled):
    for dtype in TOLERANCE:
        model = weights.load(any_model, dtype, "cuda")
        section, ours = OptimizerSection(lr=1e-3, gradient_checkpointing=True), not model.config.other
        trainer = Trainer(model, section, compiled=compiled and ours)
        before = model.lm_head.weight.detach().clone()
        rows = [Row(tuple(range(20)), (1,) * 10, (-3.0,) * 10, a, rollout_id=0) for a in (1.0, -1.0)]
        stats = trainer.grpo_step(rows)
        assert stats["nonfinite_steps"] == 0
        assert stats["grad_norm"] > 0
        assert not torch.equal(model.lm_head.weight, before)


@pytest.mark.skipif(TORCH < (2, 11), reason="needs PyTorch 2.11")
def test_the_varlen_kernel_runs_on_this_gpu():
    assert varlen.has_varlen(torch.device("cuda"), torch.bfloat16, 4, 2, 64)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("sizes", [(14, 2, 64), (32, 8, 128)])
def test_the_triton_kernel_runs_on_this_gpu(dtype, sizes):
    from core.engine import paged_attention  # it imports Triton

    assert paged_attention.has_paged_attention(torch.device("cuda"), getattr(torch, dtype), *sizes, 16)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)  # float32 weights compute in bfloat16 under autocast
def test_trees_have_the_gradients_of_padded_buckets(qwen2, monkeypatch, dtype, checkpointing):
    varlen._probe.cache_clear()  # the first call of a run may be in a checkpoint

    def step() -> dict[str, torch.Tensor]:
        model = weights.load(qwen2, dtype, "cuda")
        section = OptimizerSection(lr=0.0, clip_grad=1e9, gradient_checkpointing=checkpointing)
        trainer = Trainer(model, section)
        found = watch_gradients(trainer)
        trainer.grpo_step(make_rows(0))
        return found

    ours = step()
    monkeypatch.setattr(packing, "has_varlen", lambda *_: False)
    for name, padded in step().items():
        off = (ours[name] - padded).norm() / padded.norm().clamp(min=1e-6)
        assert off < 0.05, name


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_offloaded_steps_are_those_of_the_card_and_resume_in_the_machines_memory(qwen2, tmp_path, dtype):
    def make(offload: bool) -> Trainer:
        model = weights.load(qwen2, dtype, "cuda")
        return Trainer(model, OptimizerSection(lr=1e-3, max_tokens_per_pack=40, cpu_offload=offload), start=qwen2)

    def read(trainer: Trainer) -> dict[str, torch.Tensor]:
        return {name: weight.float().cpu().clone() for name, weight in trainer.precise_weights().items()}

    on_card, offloaded = make(False), make(True)
    start = read(offloaded)
    for seed in range(3):
        stats, ours = (trainer.grpo_step(make_rows(seed)) for trainer in (on_card, offloaded))
        assert ours["grad_norm"] == pytest.approx(stats["grad_norm"], rel=0.02)
    # The gradient of a key's bias is zero but for rounding, which Adam makes large.
    wanted, found = (
        torch.cat([w.flatten() - start[name].flatten() for name, w in read(each).items() if "k_proj.bias" not in name])
        for each in (on_card, offloaded)
    )
    assert (found - wanted).norm() < 0.05 * wanted.norm()
    for copy, weight in offloaded._copies:
        assert (weight.device.type, weight.grad) == ("cuda", None)
        assert torch.equal(weight.cpu(), copy.to(weight.dtype))

    path = checkpoint.save(tmp_path, 3, offloaded.model, qwen2, {"trainer": offloaded.state()})
    again = make(True)
    again.load_state(checkpoint.load(path, again.model)["trainer"])
    assert all(torch.equal(a, b) for a, b in zip(offloaded._optimized, again._optimized, strict=True))
    for saved, found in zip(offloaded.optimizer.state.values(), again.optimizer.state.values(), strict=True):
        assert all(found[name].device.type == "cpu" and torch.equal(found[name], saved[name]) for name in saved)
    assert again.grpo_step(make_rows(3))["nonfinite_steps"] == 0.0
