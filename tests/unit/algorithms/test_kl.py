"""KL estimators: signs, clamps and gradients. Their numbers are in tests/golden/algorithms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.losses import kl_penalty


@settings(deadline=None)
@given(st.floats(-20, 20))
def test_k2_and_k3_are_never_negative_and_zero_only_at_equality(x: float) -> None:
    for kind in ("k2", "k3", "low_var_kl"):
        kl = kl_penalty(torch.tensor([x, 0.0]).double(), torch.zeros(2).double(), kind)
        assert kl[0] >= 0
        assert kl[1] == 0


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_k1_and_k3_estimate_the_true_kl(kind: Any) -> None:
    policy = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    reference = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    expected = (policy * (policy / reference).log()).sum()
    torch.testing.assert_close((policy * kl_penalty(policy.log(), reference.log(), kind)).sum(), expected)


def test_low_var_kl_stays_finite_where_exp_overflows() -> None:
    logprobs = torch.tensor([-200.0, -5.0, 200.0], requires_grad=True)
    kl = kl_penalty(logprobs, torch.zeros(3), "low_var_kl")
    kl.sum().backward()
    assert kl.tolist() == [10.0, 10.0, 10.0]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, 0.0, 0.0]


def test_reference_gets_no_gradient() -> None:
    logprobs, reference = torch.zeros(2, requires_grad=True), torch.ones(2, requires_grad=True)
    kl_penalty(logprobs, reference, "k3").sum().backward()
    assert reference.grad is None
    assert logprobs.grad is not None


def test_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="known: k1, k2, k3, low_var_kl"):
        kl_penalty(torch.zeros(1), torch.zeros(1), "k4")  # type: ignore[arg-type]
