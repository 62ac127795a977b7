"""Computes the GRPO loss of a pack of rows (slime's `policy_loss_function` for `--advantage-estimator grpo`).

loss = sum over trained tokens of scale * (tis * policy loss + kl_loss_coef * KL - entropy_coef * entropy)

`scale` comes from `aggregate.row_scales` over the whole batch, so the losses, gradients and statistics of packs add up
to those of the batch. Tensor suffixes: core/algorithms/__init__.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from core.algorithms.losses import (
    KL_LOSS_TYPES,
    TIS_MODES,
    KLLossType,
    TISMode,
    clipped_policy_loss,
    kl_penalty,
    tis_weights,
)


@dataclass(frozen=True)
class GRPOConfig:
    """Holds the coefficients of the loss.

    The ratio is clipped to [1 - clip_ratio_low, 1 + clip_ratio_high]. `clip_ratio_c` (> 1) and `tis` (lowest and
    highest ratio of trainer to rollout probability) are off when None.

    Raises:
        ValueError: a value is outside its range.
    """

    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    clip_ratio_c: float | None = None
    kl_loss_coef: float = 0.0
    kl_loss_type: KLLossType = "low_var_kl"
    entropy_coef: float = 0.0
    tis: tuple[float, float] | None = None
    tis_mode: TISMode = "clamp"

    def __post_init__(self) -> None:
        def require(holds: bool, name: str, rule: str) -> None:
            if not holds:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be {rule}")

        require(0 < self.clip_ratio_low <= 1, "clip_ratio_low", "above 0 and at most 1")
        require(self.clip_ratio_high > 0, "clip_ratio_high", "above 0")
        require(self.clip_ratio_c is None or self.clip_ratio_c > 1, "clip_ratio_c", "above 1, or None for no dual clip")
        require(0 <= self.kl_loss_coef < math.inf, "kl_loss_coef", "finite and at least 0")
        require(0 <= self.entropy_coef < math.inf, "entropy_coef", "finite and at least 0")
        require(self.kl_loss_type in KL_LOSS_TYPES, "kl_loss_type", f"one of {', '.join(KL_LOSS_TYPES)}")
        require(self.tis_mode in TIS_MODES, "tis_mode", f"one of {', '.join(TIS_MODES)}")
        in_order = self.tis is None or (len(self.tis) == 2 and 0 <= self.tis[0] <= 1 <= self.tis[1])
        require(in_order, "tis", "(low, high) with 0 <= low <= 1 <= high, or None for no correction")


def grpo_loss(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    rollout_logprobs_T: Tensor,
    ref_logprobs_T: Tensor | None,
    entropy_T: Tensor | None,
    advantages_T: Tensor,
    mask_T: Tensor,
    scales_T: Tensor,
    config: GRPOConfig,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the scalar loss and detached statistics under slime's names: sums of scale * value over trained tokens.

    `logprobs_T` (with gradient) and `old_logprobs_T` are the trainer's, now and before the first step on this batch;
    `rollout_logprobs_T` are the inference engine's; all in nats, float32 or wider. Tokens with mask 0 are dropped
    before any arithmetic: whatever they hold, they add nothing to loss or gradient.

    Raises:
        ValueError: lengths differ; or the reference log-probs or the entropy that a coefficient needs are missing.
    """
    if config.kl_loss_coef and ref_logprobs_T is None:
        raise ValueError(
            f"kl_loss_coef is {config.kl_loss_coef}, but there are no reference log-probs: load a reference or set it "
            "to 0"
        )
    if config.entropy_coef and entropy_T is None:
        raise ValueError(
            f"entropy_coef is {config.entropy_coef}, but no entropy was given: compute it or set entropy_coef to 0"
        )
    _require_same_length(
        logprobs_T=logprobs_T,
        old_logprobs_T=old_logprobs_T,
        rollout_logprobs_T=rollout_logprobs_T,
        ref_logprobs_T=ref_logprobs_T,
        entropy_T=entropy_T,
        advantages_T=advantages_T,
        mask_T=mask_T,
        scales_T=scales_T,
    )
    # From here on R: the tokens of T that are trained.
    trained_T = mask_T.bool()
    logprobs_R = logprobs_T[trained_T]
    old_logprobs_R = old_logprobs_T.detach()[trained_T]
    rollout_logprobs_R = rollout_logprobs_T.detach()[trained_T]
    scales_R = scales_T[trained_T]

    def total(x_R: Tensor) -> Tensor:
        return (scales_R * x_R).sum()

    policy_loss_R, clipped_R = clipped_policy_loss(
        logprobs_R,
        old_logprobs_R,
        advantages_T[trained_T],
        clip_ratio_low=config.clip_ratio_low,
        clip_ratio_high=config.clip_ratio_high,
        clip_ratio_c=config.clip_ratio_c,
    )
    stats = {
        "pg_clipfrac": total(clipped_R),
        "ppo_kl": total(old_logprobs_R - logprobs_R),
        "train_rollout_logprob_abs_diff": total((old_logprobs_R - rollout_logprobs_R).abs()),
    }
    if config.tis is not None:
        low, high = config.tis
        weights_R = tis_weights(old_logprobs_R, rollout_logprobs_R, low=low, high=high, mode=config.tis_mode)
        policy_loss_R = policy_loss_R * weights_R
        ratio_R = (old_logprobs_R - rollout_logprobs_R).exp()
        stats |= {"tis": total(ratio_R), "tis_clipfrac": total((weights_R != ratio_R).to(ratio_R.dtype))}
    loss = stats["pg_loss"] = total(policy_loss_R)
    if ref_logprobs_T is not None:
        stats["kl_loss"] = total(kl_penalty(logprobs_R, ref_logprobs_T[trained_T], config.kl_loss_type))
        if config.kl_loss_coef:
            loss = loss + config.kl_loss_coef * stats["kl_loss"]
    if entropy_T is not None:
        stats["entropy_loss"] = total(entropy_T[trained_T])
        if config.entropy_coef:
            loss = loss - config.entropy_coef * stats["entropy_loss"]
    stats["loss"] = loss
    return loss, {name: value.detach() for name, value in stats.items()}


def _require_same_length(**tensors: Tensor | None) -> None:
    shapes = {name: tuple(x.shape) for name, x in tensors.items() if x is not None}
    if len(set(shapes.values())) != 1 or len(next(iter(shapes.values()))) != 1:
        raise ValueError(f"all tensors must be flat and of one length, got {shapes}")
