"""Defines the coefficients of the GRPO loss. They are part of every recipe, so nothing here imports torch."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from core.options import Section, Share

TISMode = Literal["clamp", "mask"]
KLLossType = Literal["k1", "k2", "k3", "low_var_kl"]


class GRPOConfig(Section):
    """Holds the coefficients of the loss."""

    clip_ratio_low: Share = 0.2
    """Clips the ratio to the old policy at 1 - this."""
    clip_ratio_high: PositiveFloat = 0.2
    """Clips the ratio to the old policy at 1 + this."""
    clip_ratio_c: Annotated[float, Field(gt=1)] | None = None
    """Limits the loss of a token with a negative advantage A to -A times this (dual clip). None switches it off."""
    kl_loss_coef: NonNegativeFloat = 0.0
    """Weighs the KL to the start model in the loss. Above 0, a copy of the start model is kept."""
    kl_loss_type: KLLossType = "low_var_kl"
    entropy_coef: NonNegativeFloat = 0.0
    tis: tuple[NonNegativeFloat, NonNegativeFloat] | None = None
    """Corrects for the inference engine's log-probs within these bounds of the ratio of trainer to rollout probability.
    None switches it off."""
    tis_mode: TISMode = "clamp"
    """Moves a ratio outside of `tis` to the nearer bound, or gives the token weight 0."""

    @model_validator(mode="after")
    def _bounds_hold_a_ratio_of_one(self) -> Self:
        if self.tis is not None and not self.tis[0] <= 1 <= self.tis[1]:
            raise ValueError(
                f"tis is {self.tis!r}; it must be (low, high) with 0 <= low <= 1 <= high, or None for no correction"
            )
        return self
