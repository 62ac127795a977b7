"""The GRPO loss of packs: they add up to the batch, masked tokens do not exist, and wrong configurations are named."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core.algorithms.aggregate import row_scales
from core.algorithms.grpo import GRPOConfig, grpo_loss
from core.types import LossAgg, Row

EVERYTHING = GRPOConfig(clip_ratio_c=3.0, kl_loss_coef=0.1, entropy_coef=0.05, tis=(0.5, 2.0))
CONFIGS = [
    EVERYTHING,
    GRPOConfig(loss_mode="gspo", clip_ratio_high=0.3, tis=(0.5, 2.0)),
    GRPOConfig(loss_mode="cispo", clip_ratio_low=0.5, kl_loss_coef=0.1),
    GRPOConfig(loss_mode="dppo_tv", clip_ratio_low=0.1, clip_ratio_c=2.0),
    GRPOConfig(loss_mode="dppo_kl", clip_ratio_low=0.02, clip_ratio_high=0.05, clip_ratio_c=2.0),
]
VOCABULARY = 5


def make_row(rollout_id: int, mask: list[int]) -> Row:
    tokens = tuple(range(len(mask) + 1))
    return Row(tokens, tuple(mask), (-1.0,) * len(mask), advantage=rollout_id - 1.5, rollout_id=rollout_id)


rows = st.builds(make_row, st.integers(0, 3), st.lists(st.integers(0, 1), min_size=1, max_size=5))
batches = st.lists(rows, min_size=1, max_size=8)


def make_columns(batch: list[Row], unit: LossAgg, seed: int) -> list[dict[str, Tensor]]:
    """Random tensors for each row: the logits of its response tokens and the arguments of grpo_loss."""
    generator = torch.Generator().manual_seed(seed)
    columns = []
    for row, scale in zip(batch, row_scales(batch, unit), strict=True):
        n = len(row.loss_mask)
        noise = torch.randn(3, n, generator=generator, dtype=torch.float64)
        columns.append(
            {
                "logits": torch.randn(n, VOCABULARY, generator=generator, dtype=torch.float64),
                "old_logprobs_T": -1.6 + 0.3 * noise[0],
                "rollout_logprobs_T": -1.6 + 0.3 * noise[1],
                "ref_logprobs_T": -1.6 + noise[2],
                "advantages_T": torch.full((n,), row.advantage, dtype=torch.float64),
                "mask_T": torch.tensor(row.loss_mask),
                "scales_T": torch.full((n,), scale, dtype=torch.float64),
            }
        )
    return columns


def step(columns: list[dict[str, Tensor]], bias: Tensor, config: GRPOConfig) -> dict[str, Tensor]:
    """Loss of one pack, its gradient accumulated on `bias`, a parameter shared by all tokens.

    Rows are numbered within their pack, as the trainer numbers them.
    """
    lengths = torch.tensor([len(column["logits"]) for column in columns])
    rows = torch.arange(len(columns)).repeat_interleave(lengths)
    pack = {name: torch.cat([column[name] for column in columns]) for name in columns[0]}
    all_logprobs = (pack.pop("logits") + bias).log_softmax(-1)
    entropy = -(all_logprobs.exp() * all_logprobs).sum(-1)
    loss, stats = grpo_loss(logprobs_T=all_logprobs[:, 0], entropy_T=entropy, config=config, sequence_T=rows, **pack)
    loss.backward()
    return stats


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.loss_mode)
@settings(max_examples=40)
@given(batch=batches, unit=st.sampled_from(["rollout", "turn", "token"]), data=st.data())
def test_any_split_into_packs_adds_up_to_the_batch(
    config: GRPOConfig, batch: list[Row], unit: LossAgg, data: st.DataObject
) -> None:
    columns = make_columns(batch, unit, seed=len(batch))
    whole = torch.zeros(VOCABULARY, dtype=torch.float64, requires_grad=True)
    expected = step(columns, whole, config)

    order = data.draw(st.permutations(columns))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(order) - 1)))) if len(order) > 1 else []
    accumulated = torch.zeros(VOCABULARY, dtype=torch.float64, requires_grad=True)
    sums: dict[str, Any] = dict.fromkeys(expected, 0.0)
    for start, end in zip([0, *cuts], [*cuts, len(order)], strict=True):
        for name, value in step(order[start:end], accumulated, config).items():
            sums[name] += value

    torch.testing.assert_close(accumulated.grad, whole.grad)
    torch.testing.assert_close(sums, expected)


MOVES = torch.tensor([0.05, 0.5, 1.4, -0.5, 0.1, -0.1, -0.6, 0.9], dtype=torch.float64)
"""Lists how far the log-probs of a row of three tokens and of one of five have moved: none is near a bound."""


def stopped_weights(config: GRPOConfig, now: Tensor, old: Tensor, rollout: Tensor, advantages: Tensor) -> Tensor:
    """Return the factor of -A log p that has no gradient in CISPO and DPPO, from the formulas of their papers."""
    if config.loss_mode == "cispo":
        return (now - old).exp().clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    p, q = rollout.exp(), now.exp()
    divergence = (p - q).abs()
    if config.loss_mode == "dppo_kl":
        divergence = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    bound = torch.where(advantages > 0, config.clip_ratio_high, config.clip_ratio_low)
    return (q / p).clamp(max=config.clip_ratio_c) * ((divergence <= bound) | (advantages * (q - p) <= 0))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("config", [GRPOConfig(clip_ratio_c=3.0), *CONFIGS[1:]], ids=lambda config: config.loss_mode)
def test_gradients_are_finite_differences(config: GRPOConfig, sign: float) -> None:
    """GSPO's loss by token has the gradient of its sequence's where a row has one advantage (equations 10 and 14)."""
    config = config.model_copy(update={"tis": None, "kl_loss_coef": 0.0})
    rows = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    old = torch.linspace(-2.6, -1.6, 8, dtype=torch.float64)
    rollout, start, advantages = old + 0.03, old + MOVES, sign * torch.tensor([1.0, -0.7]).double()[rows]
    scales = torch.tensor([1 / 6, 1 / 10], dtype=torch.float64)[rows]
    masks = torch.ones(8)

    def loss_at(logprobs: Tensor) -> Tensor:
        if config.loss_mode in ("vanilla", "gspo"):
            return grpo_loss(logprobs, old, rollout, None, None, advantages, masks, scales, config, rows)[0]
        weights = stopped_weights(config, start, old, rollout, advantages)
        return -(scales * weights * advantages * logprobs).sum()

    logprobs = start.clone().requires_grad_()
    loss, stats = grpo_loss(logprobs, old, rollout, None, None, advantages, masks, scales, config, rows)
    loss.backward()
    steps = 1e-6 * torch.eye(8, dtype=torch.float64)
    expected = torch.stack([(loss_at(start + h) - loss_at(start - h)) / 2e-6 for h in steps])
    torch.testing.assert_close(logprobs.grad, expected, atol=1e-8, rtol=1e-6)
    torch.testing.assert_close(loss.detach(), loss_at(start), atol=1e-12, rtol=1e-12)
    assert expected.any()
    assert stats["pg_clipfrac"] > 0 or sign < 0


@settings(max_examples=40)
@given(batches, st.sampled_from([math.nan, math.inf, -math.inf, 1e30]))
def test_masked_tokens_do_not_exist(batch: list[Row], garbage: float) -> None:
    pack = {
        name: torch.cat([column[name] for column in make_columns(batch, "rollout", seed=1)])
        for name in ("old_logprobs_T", "rollout_logprobs_T", "ref_logprobs_T", "advantages_T", "mask_T", "scales_T")
    }
    masked = pack["mask_T"] == 0
    results = []
    for spoiled in (False, True):
        spoil = masked & spoiled
        logprobs = torch.full(masked.shape, -1.5).double().masked_fill(spoil, garbage).requires_grad_()
        entropy = torch.full(masked.shape, 1.2).double().masked_fill(spoil, garbage).requires_grad_()
        tensors = {name: x.masked_fill(spoil, garbage) if name != "mask_T" else x for name, x in pack.items()}
        loss, stats = grpo_loss(logprobs_T=logprobs, entropy_T=entropy, config=EVERYTHING, **tensors)
        loss.backward()
        assert logprobs.grad is not None
        assert entropy.grad is not None
        assert not logprobs.grad[masked].any()
        assert not entropy.grad[masked].any()
        results.append((stats, logprobs.grad, entropy.grad))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def arguments(**changes: Any) -> dict[str, Any]:
    names = ("logprobs", "old_logprobs", "rollout_logprobs", "ref_logprobs", "entropy", "advantages", "mask", "scales")
    return {f"{name}_T": torch.ones(3) for name in names} | {"config": GRPOConfig()} | changes


def test_pack_without_a_trained_token_has_a_loss_of_zero_that_can_go_backward() -> None:
    logprobs = torch.ones(3, requires_grad=True)
    loss, stats = grpo_loss(**arguments(logprobs_T=logprobs, mask_T=torch.zeros(3), config=EVERYTHING))
    loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0, 0, 0]
    assert {value.item() for value in stats.values()} == {0}


def test_without_kl_coefficient_the_reference_is_only_reported() -> None:
    with_reference, stats = grpo_loss(**arguments(ref_logprobs_T=torch.zeros(3)))
    without, _ = grpo_loss(**arguments(ref_logprobs_T=None))
    assert with_reference == without
    assert stats["kl_loss"] > 0


def test_missing_inputs_are_named() -> None:
    with pytest.raises(ValueError, match=r"kl_loss_coef is 0\.1, but there are no reference log-probs"):
        grpo_loss(**arguments(ref_logprobs_T=None, config=GRPOConfig(kl_loss_coef=0.1)))
    with pytest.raises(ValueError, match=r"entropy_coef is 0\.1, but no entropy"):
        grpo_loss(**arguments(entropy_T=None, config=GRPOConfig(entropy_coef=0.1)))
