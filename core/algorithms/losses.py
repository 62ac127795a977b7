"""Losses and weights per token: the policy losses, truncated importance sampling and the KL penalty.

A is a token's advantage, r the ratio of its probability to that under the old policy, sg stops the gradient. The loss
of a token, by `loss_mode`:

- vanilla: max(-A r, -A clip(r)), and at most -A clip_ratio_c where A < 0.
- gspo: the same with one r for all sampled tokens of a row, the geometric mean of theirs; the gradient is that of each
  token (arXiv 2507.18071, equations 7 and 14).
- cispo: -sg(clip(r)) A log p, so a token beyond the bounds keeps its gradient (arXiv 2506.13585, equations 4 and 5).
- dppo_tv, dppo_kl: -sg(min(r, clip_ratio_c)) A log p, and 0 for a token that A moves away from the policy that sampled
  it, of which it is further than the bound: by the difference of the token's probability, or by the KL divergence
  between "this token" and "another one" (arXiv 2602.04879, equations 12 to 14). Here r is the ratio to the inference
  engine's probability (section 5.2).

Clipping: PPO (arXiv 1707.06347) with separate bounds (DAPO, arXiv 2503.14476) and dual clip (arXiv 1912.09729), as in
slime's `ppo_utils.compute_policy_loss`. Importance sampling corrects for an inference engine whose log-probs differ
from the trainer's: `clamp` is TIS, `mask` is IcePop (slime's `vanilla_tis_function` and `icepop_function`).

KL(policy || reference) is estimated from sampled tokens (joschu.net/blog/kl-approx.html). With x = log-prob - reference
log-prob: k1 = x, k2 = x^2 / 2, k3 = exp(-x) - 1 + x, low_var_kl = k3 clamped to +-10: the numbers of slime's
`ppo_utils.compute_approx_kl`. As a loss, use k2, k3 or low_var_kl: the gradient of k1 does not depend on the reference.
Where exp(-x), or a ratio, leaves the range of float32, slime's is infinite; ours takes exp(88) and its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core.algorithms.coefficients import GRPOConfig, KLLossType, TISMode

LOW_VAR_LIMIT = 10.0
OTHERS_EPSILON = 1e-8
"""Keeps the probability of all other tokens above 0 (the authors' code of DPPO)."""
LARGEST_EXPONENT = 88.0
"""Bounds what goes into exp: float32 overflows at 88.7, and one infinite token takes the gradient of the whole step."""


def policy_loss(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    rollout_logprobs_T: Tensor,
    advantages_T: Tensor,
    sequence_T: Tensor | None,
    config: GRPOConfig,
) -> tuple[Tensor, Tensor]:
    """Return the loss of each token under `config.loss_mode`, and 1 where a bound decided it (0 elsewhere).

    `sequence_T` numbers the row of each token; gspo alone needs it. The gradient flows through `logprobs_T` alone.
    """
    low, high = config.clip_ratio_low, config.clip_ratio_high
    match config.loss_mode:
        case "vanilla" | "gspo":
            log_ratio_T = logprobs_T - old_logprobs_T.detach()
            if config.loss_mode == "gspo":
                assert sequence_T is not None
                mean_T = _average_sequences(log_ratio_T.detach(), sequence_T)
                log_ratio_T = mean_T + (logprobs_T - logprobs_T.detach())
            return clipped_policy_loss(
                log_ratio_T, advantages_T, clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=config.clip_ratio_c
            )
        case "cispo":
            ratio_T = bounded_exp((logprobs_T - old_logprobs_T).detach())
            weights_T = ratio_T.clamp(1 - low, 1 + high)
            return -weights_T * advantages_T * logprobs_T, (weights_T != ratio_T).to(logprobs_T.dtype)
        case "dppo_tv" | "dppo_kl":
            now_T, then_T = logprobs_T.detach(), rollout_logprobs_T.detach()
            moved_T = now_T.exp() - then_T.exp()  # how far the token's probability has moved, up or down
            gone_T = moved_T.abs() if config.loss_mode == "dppo_tv" else _binary_kl(then_T, now_T)
            up_T = advantages_T > 0
            beyond_T = torch.where(up_T, (moved_T > 0) & (gone_T > high), (moved_T < 0) & (gone_T > low))
            ratio_T = bounded_exp(now_T - then_T).clamp(0, config.clip_ratio_c)
            loss_T = -ratio_T * advantages_T * logprobs_T
            return torch.where(beyond_T, 0.0, loss_T), beyond_T.to(logprobs_T.dtype)


def balance_loss(router_logits: Sequence[Tensor], top_k: int) -> Tensor:
    """Return E * sum over experts e of f_e * P_e: 1 times `top_k` where all experts have as many tokens.

    f_e is the share of tokens that choose e, P_e its mean probability, over all layers (Switch Transformers, arXiv
    2101.03961, equations 4 to 6; the numbers of transformers' `load_balancing_loss_func`). Each of `router_logits` is
    [T, E].
    """
    probs_NE = torch.cat(list(router_logits)).float().softmax(dim=-1)
    chosen_E = torch.bincount(probs_NE.topk(top_k, dim=-1).indices.flatten(), minlength=probs_NE.shape[1])
    return probs_NE.shape[1] * (chosen_E / len(probs_NE) * probs_NE.mean(dim=0)).sum()


def _average_sequences(values_T: Tensor, sequence_T: Tensor) -> Tensor:
    """Return at each token the mean of its sequence."""
    sums_N = values_T.new_zeros(int(sequence_T.max()) + 1 if len(sequence_T) else 0).index_add_(0, sequence_T, values_T)
    counts_N = torch.bincount(sequence_T, minlength=len(sums_N))
    return (sums_N / counts_N.clamp(min=1))[sequence_T]


def _binary_kl(then_T: Tensor, now_T: Tensor) -> Tensor:
    """Return the KL divergence between "this token" and "another one", then || now, from two log-probs, in nats."""
    others_T, others_now_T = (1 - x_T.exp() + OTHERS_EPSILON for x_T in (then_T, now_T))
    return then_T.exp() * (then_T - now_T) + (1 - then_T.exp()) * (others_T / others_now_T).log()


def clipped_policy_loss(
    log_ratio_T: Tensor,
    advantages_T: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float | None,
) -> tuple[Tensor, Tensor]:
    """Return the loss of each token, and 1 where the clipped ratio decided it (0 elsewhere).

    The ratio to the old policy is clipped to [1 - clip_ratio_low, 1 + clip_ratio_high]. `clip_ratio_c` c > 1 bounds the
    loss of a token with a negative advantage A by -c * A.
    """
    ratio_T = bounded_exp(log_ratio_T)
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
