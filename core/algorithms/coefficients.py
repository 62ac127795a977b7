"""Defines the coefficients of the loss. They are part of every recipe, so nothing here imports torch."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from core.options import EMBEDDED_ONLY, Section, Share

TISMode = Literal["clamp", "mask"]
KLLossType = Literal["k1", "k2", "k3", "low_var_kl"]
LossMode = Literal["vanilla", "gspo", "cispo", "dppo_tv", "dppo_kl"]
"""Names the policy loss of a token; core/algorithms/losses.py explains each."""
TURN_ESTIMATORS = ("turn_grpo", "gigpo", "gae")
"""Names the estimators that give the turns of a rollout different advantages."""
BATCH_ESTIMATORS = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")
"""Names the estimators that normalise over a batch (`advantages.whiten`)."""
WITHOUT_MEAN = ("reinforce_plus_plus", "gae")
"""Names the estimators that compare no rollout with its group."""


class GRPOConfig(Section):
    """Holds the coefficients of the loss."""

    loss_mode: LossMode = "vanilla"
    """Names the policy loss: PPO's clipped ratio, or that of GSPO, CISPO or DPPO."""
    clip_ratio_low: Share = 0.2
    """Clips the ratio to the old policy at 1 - this. With dppo_tv and dppo_kl it is the largest divergence of a token
    whose advantage is not positive."""
    clip_ratio_high: PositiveFloat = 0.2
    """Clips the ratio to the old policy at 1 + this. With dppo_tv and dppo_kl it is the largest divergence of a token
    whose advantage is positive."""
    clip_ratio_c: Annotated[float, Field(gt=1)] | None = None
    """Limits the loss of a token with a negative advantage A to -A times this (dual clip). None switches it off. With
    dppo_tv and dppo_kl it limits the ratio."""
    kl_loss_coef: NonNegativeFloat = 0.0
    """Weighs the KL to the start model in the loss. Above 0, a copy of the start model is kept."""
    kl_loss_type: KLLossType = "low_var_kl"
    kl_coef: Annotated[NonNegativeFloat, EMBEDDED_ONLY] = 0.0
    """Takes this many times a rollout's KL to the start model, the sum over its sampled tokens, from its reward. Above
    0, a copy of the start model is kept."""
    observation_coef: Annotated[NonNegativeFloat, EMBEDDED_ONLY] = 0.0
    """Weighs the mean cross-entropy of the tokens between the turns of a row, which no policy sampled (ECHO)."""
    router_aux_loss_coef: Annotated[NonNegativeFloat, EMBEDDED_ONLY] = 0.0
    """Weighs the loss that gives all experts of a mixture as many tokens."""
    vf_coef: Annotated[NonNegativeFloat, EMBEDDED_ONLY] = 0.0
    """Weighs the squared error of the value head, a linear map of the last hidden state, for adv_estimator gae."""
    entropy_coef: NonNegativeFloat = 0.0
    tis: tuple[NonNegativeFloat, NonNegativeFloat] | None = None
    """Corrects for the inference engine's log-probs within these bounds of the ratio of trainer to rollout probability.
    None switches it off."""
    tis_mode: TISMode = "clamp"
    """Moves a ratio outside of `tis` to the nearer bound, or gives the token weight 0."""

    @model_validator(mode="after")
    def _loss_mode_uses_what_is_set(self) -> Self:
        if self.tis is not None and not self.tis[0] <= 1 <= self.tis[1]:
            raise ValueError(f"tis is {self.tis!r}; it must be (low, high) with 0 <= low <= 1 <= high, or null")
        if self.tis is None and self.tis_mode != "clamp":
            raise ValueError(f"tis_mode={self.tis_mode} has no place without tis; leave it out, or set algorithm.tis")
        if self.loss_mode in ("gspo", "cispo") and self.clip_ratio_c is not None:
            raise ValueError(f"clip_ratio_c has no place in loss_mode={self.loss_mode}; set it to null")
        if self.loss_mode in ("dppo_tv", "dppo_kl") and self.tis is not None:
            raise ValueError(f"loss_mode={self.loss_mode} has the engine's log-probs already; set algorithm.tis=null")
        return self
