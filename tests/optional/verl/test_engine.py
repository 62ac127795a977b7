"""verl's own FSDP engine takes optimizer steps with our rows, weights and loss, on one CPU process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from core.algorithms.aggregate import row_scales
from core.algorithms.grpo import grpo_loss
from core.types import Row
from tests.optional.verl.test_weights import make_groups, our_rows

pytestmark = [pytest.mark.optional, pytest.mark.timeout(300)]
OVERRIDES = (
    "actor_rollout_ref.model.use_remove_padding=False",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1",
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",
    "actor_rollout_ref.actor.fsdp_config.dtype=float32",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}",
    "actor_rollout_ref.actor.optim.total_training_steps=10",
)


@pytest.fixture
def process_group(verl: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One process, and a platform without an accelerator, which verl does not bring."""
    from verl.plugin.platform import platform_manager

    from tests.optional.verl.cpu_platform import PlatformCPU

    before = platform_manager.get_platform()
    platform_manager.set_platform(PlatformCPU())
    monkeypatch.setattr("verl.workers.engine.fsdp.transformer_impl.device_name", "cpu")
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setitem(os.environ, name, value)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
    platform_manager.set_platform(before)


@pytest.mark.parametrize("loss_agg", ["rollout", "token", "turn"])
def test_a_step_has_our_loss_and_gradient_norm(
    verl: Any,
    process_group: None,
    compose: Any,
    tokenizer: Any,
    model: Path,
    loss_agg: str,
) -> None:
    from transformers import AutoModelForCausalLM
    from verl.utils.config import omega_conf_to_dataclass
    from verl.utils.tensordict_utils import assign_non_tensor
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from core.backends.verl.loss import rollout_loss

    groups = make_groups(3, seed=5)
    trainer, queue = compose(
        groups, *OVERRIDES, tokenizer=tokenizer, loss_agg=loss_agg, kl_loss_coef=0.0, tis=[0.5, 2.0]
    )
    algorithm = trainer._recipe.algorithm
    batch = trainer._compute_advantage(trainer._balance_batch(queue.batch(), {}), {})

    actor = omega_conf_to_dataclass(trainer.config.actor_rollout_ref.actor)
    engine = FSDPEngineWithLMHead(
        model_config=omega_conf_to_dataclass(trainer.config.actor_rollout_ref.model),
        engine_config=actor.fsdp_config,
        optimizer_config=actor.optim,
        checkpoint_config=actor.checkpoint,
    )
    engine.initialize()
    names = "prompts responses input_ids position_ids response_mask loss_mask rollout_log_probs advantages loss_scales"
    data = queue.get(batch.keys, "train", names.split())
    data["old_log_probs"] = data["rollout_log_probs"]
    assign_non_tensor(
        data, use_remove_padding=False, use_fused_kernels=False, use_dynamic_bsz=False, micro_batch_size_per_gpu=3,
        temperature=1.0, calculate_entropy=False, global_batch_size=len(batch.keys),
    )  # fmt: skip
    with engine.train_mode():
        output = engine.train_batch(data, partial(rollout_loss, coefficients=algorithm))["metrics"]

    # Ours: each row by itself through the same weights, and one backward pass.
    ours = our_rows(groups, algorithm)
    rows: list[Row] = [row for part in ours.values() for row in part]
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    scales = row_scales(rows, algorithm.loss_agg)
    values: list[list[torch.Tensor]] = [[], [], [], [], []]
    for row, scale in zip(rows, scales, strict=True):
        tokens, size = torch.tensor([row.tokens]), len(row.loss_mask)
        logprobs = network(tokens).logits[0].log_softmax(-1)[:-1].gather(1, tokens[0, 1:, None])[-size:, 0]
        constants = torch.tensor(row.logprobs), torch.full((size,), row.advantage), torch.tensor(row.loss_mask)
        for place, value in enumerate((logprobs, *constants, torch.full((size,), scale))):
            values[place].append(value)
    logprobs, old, advantages, mask, weights = map(torch.cat, values)
    loss, _ = grpo_loss(logprobs, old, old, None, None, advantages, mask, weights, algorithm)
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in network.parameters() if p.grad is not None]).norm()
    assert output["loss"].aggregate() == pytest.approx(loss.item(), rel=1e-5)
    assert output["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
