"""Computes the GRPO loss of a pack of rows (slime's `policy_loss_function` for `--advantage-estimator grpo`).

loss = sum over trained tokens of scale * (tis * policy loss + kl_loss_coef * KL - entropy_coef * entropy)

`scale` comes from `aggregate.row_scales` over the whole batch, so the losses, gradients and statistics of packs add up
to those of the batch. Tensor suffixes: core/algorithms/__init__.py.
"""

from __future__ import annotations

from torch import Tensor

from core.algorithms.coefficients import GRPOConfig
from core.algorithms.losses import bounded_exp, kl_penalty, policy_loss, tis_weights

__all__ = ["GRPOConfig", "grpo_loss"]


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
    sequence_T: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the scalar loss and detached statistics under slime's names: sums of scale * value over trained tokens.

    `logprobs_T` (with gradient) and `old_logprobs_T` are the trainer's, now and before the first step on this batch;
    `rollout_logprobs_T` are the inference engine's; all in nats, float32 or wider. `sequence_T` numbers the row of each
    token, which loss_mode gspo needs. Tokens with mask 0 are dropped before any arithmetic: whatever they hold, they
    add nothing to loss or gradient.

    Raises:
        ValueError: the reference log-probs, the entropy or the rows that a setting needs are missing.
    """
    if config.loss_mode == "gspo" and sequence_T is None:
        raise ValueError("loss_mode is gspo, but nothing says which tokens are of one row: give sequence_T")
    if config.kl_loss_coef and ref_logprobs_T is None:
        raise ValueError(
            f"kl_loss_coef is {config.kl_loss_coef}, but there are no reference log-probs: load a reference or set it "
            "to 0"
        )
    if config.entropy_coef and entropy_T is None:
        raise ValueError(
            f"entropy_coef is {config.entropy_coef}, but no entropy was given: compute it or set entropy_coef to 0"
        )
    trained_T = mask_T.bool()
    logprobs_R = logprobs_T[trained_T]
    old_logprobs_R = old_logprobs_T.detach()[trained_T]
    rollout_logprobs_R = rollout_logprobs_T.detach()[trained_T]
    scales_R = scales_T[trained_T]

    def total(x_R: Tensor) -> Tensor:
        return (scales_R * x_R).sum()

    policy_loss_R, clipped_R = policy_loss(
        logprobs_R,
        old_logprobs_R,
        rollout_logprobs_R,
        advantages_T[trained_T],
        None if sequence_T is None else sequence_T[trained_T],
        config,
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
        ratio_R = bounded_exp(old_logprobs_R - rollout_logprobs_R)
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
