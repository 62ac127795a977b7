"""Per-token estimators of KL(policy || reference) from sampled tokens (joschu.net/blog/kl-approx.html).

With x = log-prob - reference log-prob: k1 = x, k2 = x^2 / 2, k3 = exp(-x) - 1 + x, low_var_kl = k3 clamped to +-10.
Same numbers as slime's `ppo_utils.compute_approx_kl`. As a loss, use k2, k3 or low_var_kl: the gradient of k1 does not
depend on the reference.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

KLKind = Literal["k1", "k2", "k3", "low_var_kl"]
KL_KINDS: tuple[str, ...] = get_args(KLKind)

LOW_VAR_LIMIT = 10.0


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, kind: KLKind) -> Tensor:
    """KL estimate of each token in nats, shape of `logprobs`; the gradient flows through `logprobs` alone.

    Raises:
        ValueError: `kind` is unknown.
    """
    x = logprobs - ref_logprobs.detach()
    match kind:
        case "k1":
            return x
        case "k2":
            return x.square() / 2
        case "k3":
            return torch.expm1(-x) + x
        case "low_var_kl":
            # Below -20 the result is clamped anyway; without this, exp overflows and 0 * inf makes the gradient NaN.
            x = x.clamp(min=-20)
            return (torch.expm1(-x) + x).clamp(-LOW_VAR_LIMIT, LOW_VAR_LIMIT)
        case _:
            raise ValueError(f"unknown KL kind {kind!r}; known: {', '.join(KL_KINDS)}")
