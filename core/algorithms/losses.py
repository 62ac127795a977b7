"""Losses and weights of single tokens: the clipped policy loss and truncated importance sampling.

Clipping: PPO (arXiv 1707.06347) with separate bounds (DAPO, arXiv 2503.14476) and dual clip (arXiv 1912.09729), as in
slime's `ppo_utils.compute_policy_loss`. Importance sampling corrects for an inference engine whose log-probs differ
from the trainer's: `clamp` is TIS, `mask` is IcePop (slime's `vanilla_tis_function` and `icepop_function`).
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

TISMode = Literal["clamp", "mask"]
TIS_MODES: tuple[str, ...] = get_args(TISMode)


def clipped_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> tuple[Tensor, Tensor]:
    """Loss of each token, and 1 where the clipped ratio decided it (0 elsewhere); all of one shape.

    The ratio to the old policy is clipped to [1 - clip_low, 1 + clip_high]. `dual_clip` c > 1 bounds the loss of a
    token with a negative advantage A by -c * A. The gradient flows through `logprobs` alone.
    """
    ratio = torch.exp(logprobs - old_logprobs.detach())
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(unclipped, clipped)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)
    return loss, (clipped > unclipped).to(loss.dtype)


@torch.no_grad()
def tis_weights(old_logprobs: Tensor, rollout_logprobs: Tensor, *, low: float, high: float, mode: TISMode) -> Tensor:
    """Weight of each token, without gradient: trainer probability / rollout probability, kept within [low, high].

    A ratio outside is moved to the nearer bound (`clamp`) or becomes 0 (`mask`).

    Raises:
        ValueError: `mode` is unknown.
    """
    ratio = torch.exp(old_logprobs - rollout_logprobs)
    match mode:
        case "clamp":
            return ratio.clamp(low, high)
        case "mask":
            return torch.where((ratio >= low) & (ratio <= high), ratio, 0.0)
        case _:
            raise ValueError(f"unknown TIS mode {mode!r}; known: {', '.join(TIS_MODES)}")
