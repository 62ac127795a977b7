"""Clipped policy loss, importance weights and KL estimators, token by token; tests/golden/algorithms has numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.algorithms.losses import clipped_policy_loss, kl_penalty

log_ratios = st.floats(-5, 5)
advantages = st.floats(-3, 3)


def loss_and_grad(log_ratio: float, advantage: float, clip_ratio_c: float | None = None) -> tuple[float, float, float]:
    x = torch.tensor([log_ratio], dtype=torch.float64, requires_grad=True)
    advantages = torch.full_like(x, advantage)
    loss, clipped = clipped_policy_loss(
        x, advantages, clip_ratio_low=0.2, clip_ratio_high=0.3, clip_ratio_c=clip_ratio_c
    )
    loss.sum().backward()
    assert x.grad is not None
    return loss.item(), clipped.item(), x.grad.item()


@given(log_ratios, advantages)
def test_clipping_only_ever_raises_the_loss_and_stops_the_gradient(log_ratio: float, advantage: float) -> None:
    loss, clipped, grad = loss_and_grad(log_ratio, advantage)
    unclipped = -advantage * torch.tensor(log_ratio, dtype=torch.float64).exp().item()
    assert loss >= unclipped
    assert clipped == (loss > unclipped)
    assert grad == (0 if clipped else pytest.approx(unclipped))


@given(log_ratios, advantages)
def test_dual_clip_bounds_the_loss_of_negative_advantages_alone(log_ratio: float, advantage: float) -> None:
    loss, _, _ = loss_and_grad(log_ratio, advantage)
    dual, _, grad = loss_and_grad(log_ratio, advantage, clip_ratio_c=3.0)
    assert dual == pytest.approx(min(loss, -3 * advantage) if advantage < 0 else loss)
    if dual < loss:
        assert grad == 0


def test_low_var_kl_stays_finite_where_exp_overflows() -> None:
    logprobs = torch.tensor([-200.0, -5.0, 200.0], requires_grad=True)
    kl = kl_penalty(logprobs, torch.zeros(3), "low_var_kl")
    kl.sum().backward()
    assert kl.tolist() == [10.0, 10.0, 10.0]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("x", [-1e6, -200.0, -88.0, -50.0, -1.0, 0.0, 3.0])
def test_k3_and_its_gradient_are_finite_and_right_wherever_float32_can_hold_them(x: float) -> None:
    logprobs = torch.tensor([x], requires_grad=True)
    kl = kl_penalty(logprobs, torch.zeros(1), "k3")
    kl.sum().backward()
    held = max(x, -88.0)
    assert kl.item() == pytest.approx(math.expm1(-held) + x, rel=1e-5, abs=1e-7)
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(1 - math.exp(-held), rel=1e-5, abs=1e-7)


def test_one_ratio_beyond_float32_leaves_the_gradients_of_all_tokens_finite() -> None:
    logprobs = torch.zeros(4, requires_grad=True)
    old, advantages = torch.tensor([-200.0, -200.0, -200.0, 0.0]), torch.tensor([-1.0, 0.0, 1.0, 1.0])
    for clip_ratio_c in (None, 3.0):
        bounds: Any = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": clip_ratio_c}
        loss, _ = clipped_policy_loss(logprobs - old, advantages, **bounds)
        loss.sum().backward()
        assert loss.isfinite().all()
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()
    assert logprobs.grad[1:].tolist() == [0.0, 0.0, -2.0]


def test_reference_gets_no_gradient() -> None:
    logprobs, reference = torch.zeros(2, requires_grad=True), torch.ones(2, requires_grad=True)
    kl_penalty(logprobs, reference, "k3").sum().backward()
    assert reference.grad is None
    assert logprobs.grad is not None
