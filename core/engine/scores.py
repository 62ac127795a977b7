"""Attention with windows, soft caps and sinks, written out: for layers that have more than a causal mask.

PyTorch's kernels and ours know the causal mask alone, so all scores of a call lie in memory here. Tensor suffixes:
core/__init__.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Scores(NamedTuple):
    """Says what a layer does to its scores beside the causal mask."""

    window: int | None = None
    """A token attends to itself and to the `window` - 1 tokens before it."""
    cap: float | None = None
    """A score s becomes cap * tanh(s / cap): Gemma 2, arXiv 2408.00118, section 2."""
    sinks_H: Tensor | None = None
    """One more score for each head, which takes weight and gives no value: gpt-oss, arXiv 2508.10925, section 2."""


def attend_by_scores(
    scores: Scores, q_NHLD: Tensor, k_NKSD: Tensor, v_NKSD: Tensor, distance_NLS: Tensor | None = None
) -> Tensor:
    """Return the attended values [N, H, L, D].

    `distance_NLS` tells how far before a query each key stands, negative after it; N may be 1. By default the last
    query stands at the last key.
    """
    if distance_NLS is None:
        key_S = torch.arange(k_NKSD.shape[2], device=q_NHLD.device)
        distance_NLS = (key_S[-q_NHLD.shape[2] :, None] - key_S)[None]
    kv_heads, length, size = k_NKSD.shape[1], *q_NHLD.shape[-2:]
    # The heads of a group stand one below the other, so keys and values are never repeated.
    q_NKXD = q_NHLD.unflatten(1, (kv_heads, -1)).flatten(2, 3)
    scores_NKGLS = (q_NKXD @ k_NKSD.transpose(-1, -2)).float().unflatten(2, (-1, length)) * size**-0.5
    if scores.cap is not None:
        scores_NKGLS = torch.tanh(scores_NKGLS / scores.cap) * scores.cap
    hidden_NLS = distance_NLS < 0
    if scores.window is not None:
        hidden_NLS = hidden_NLS | (distance_NLS >= scores.window)
    scores_NKGLS = scores_NKGLS.masked_fill(hidden_NLS[:, None, None], -torch.inf)
    if scores.sinks_H is not None:
        sinks_KG11 = scores.sinks_H.float().view(kv_heads, -1, 1, 1)
        scores_NKGLS = torch.cat([scores_NKGLS, sinks_KG11.expand(*scores_NKGLS.shape[:-1], 1)], dim=-1)
    weights_NKGLS = torch.softmax(scores_NKGLS, dim=-1)[..., : k_NKSD.shape[2]]
    out_NKXD = weights_NKGLS.to(v_NKSD.dtype).flatten(2, 3) @ v_NKSD
    return out_NKXD.unflatten(2, (-1, length)).flatten(1, 2)
