"""Losses and weights per token: the clipped policy loss, truncated importance sampling and the KL penalty.

Clipping: PPO (arXiv 1707.06347) with separate bounds (DAPO, arXiv 2503.14476) and dual clip (arXiv 1912.09729), as in
slime's `ppo_utils.compute_policy_loss`. Importance sampling corrects for an inference engine whose log-probs differ
from the trainer's: `clamp` is TIS, `mask` is IcePop (slime's `vanilla_tis_function` and `icepop_function`).

KL(policy || reference) is estimated from sampled tokens (joschu.net/blog/kl-approx.html). With x = log-prob - reference
log-prob: k1 = x, k2 = x^2 / 2, k3 = exp(-x) - 1 + x, low_var_kl = k3 clamped to +-10: the numbers of slime's
`ppo_utils.compute_approx_kl`. As a loss, use k2, k3 or low_var_kl: the gradient of k1 does not depend on the reference.
Where exp(-x), or a ratio, leaves the range of float32, slime's is infinite; ours takes exp(88) and its gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.algorithms.coefficients import KLLossType, TISMode

LOW_VAR_LIMIT = 10.0
LARGEST_EXPONENT = 88.0
"""Bounds what goes into exp: float32 overflows at 88.7, and one infinite token takes the gradient of the whole step."""


def clipped_policy_loss(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    advantages_T: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float | None,
) -> tuple[Tensor, Tensor]:
    """Return the loss of each token, and 1 where the clipped ratio decided it (0 elsewhere).

    The ratio to the old policy is clipped to [1 - clip_ratio_low, 1 + clip_ratio_high]. `clip_ratio_c` c > 1 bounds the
    loss of a token with a negative advantage A by -c * A. The gradient flows through `logprobs_T` alone.
    """
    ratio_T = bounded_exp(logprobs_T - old_logprobs_T.detach())
    unclipped_T = -advantages_T * ratio_T
    clipped_T = -advantages_T * ratio_T.clamp(1 - clip_ratio_low, 1 + clip_ratio_high)
    loss_T = torch.maximum(unclipped_T, clipped_T)
    if clip_ratio_c is not None:
        loss_T = torch.where(advantages_T < 0, torch.minimum(loss_T, -advantages_T * clip_ratio_c), loss_T)
    return loss_T, (clipped_T > unclipped_T).to(loss_T.dtype)


def bounded_exp(x_T: Tensor) -> Tensor:
    """Return exp(x), and above 88 the value and the gradient at 88."""
    return torch.exp(_bound(x_T))


def _bound(x_T: Tensor) -> Tensor:
    # What is added is exactly 0 below the bound. It has no gradient, so above the bound the gradient does not vanish.
    return x_T + (x_T.clamp(max=LARGEST_EXPONENT) - x_T).detach()


@torch.no_grad()
def tis_weights(
    old_logprobs_T: Tensor, rollout_logprobs_T: Tensor, *, low: float, high: float, mode: TISMode
) -> Tensor:
    """Return the weight of each token, without gradient: trainer probability / rollout probability.

    A ratio outside [low, high] is moved to the nearer bound (`clamp`) or becomes 0 (`mask`).
    """
    ratio_T = bounded_exp(old_logprobs_T - rollout_logprobs_T)
    match mode:
        case "clamp":
            return ratio_T.clamp(low, high)
        case "mask":
            return torch.where((ratio_T >= low) & (ratio_T <= high), ratio_T, 0.0)


def kl_penalty(logprobs_T: Tensor, ref_logprobs_T: Tensor, kind: KLLossType) -> Tensor:
    """Estimate the KL divergence at each token, in nats; the gradient flows through `logprobs_T` alone."""
    x_T = logprobs_T - ref_logprobs_T.detach()
    match kind:
        case "k1":
            return x_T
        case "k2":
            return x_T.square() / 2
        case "k3":
            return torch.expm1(_bound(-x_T)) + x_T
        case "low_var_kl":
            # Below -20 the result is clamped anyway; without this, exp overflows and 0 * inf makes the gradient NaN.
            x_T = x_T.clamp(min=-20)
            return (torch.expm1(-x_T) + x_T).clamp(-LOW_VAR_LIMIT, LOW_VAR_LIMIT)
