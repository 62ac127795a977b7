"""Attention in bfloat16 on a CPU, as products of matrices.

PyTorch's kernel multiplies by MKL there and takes two to five times as long, mostly backward. Like it, this keeps no
weights for the backward pass, and no mask. Tensor suffixes (core/__init__.py): X counts segments times their K heads of
keys, Y the queries of a chunk times the heads that share keys, E the keys that a chunk may see.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

CHUNK = 1 << 19
"""Bounds the scores of a chunk, so that they stay in the cache of a core; twice as many where it has FEWEST queries."""
FEWEST = 32
"""Bounds the queries of a chunk from below: with fewer, calls cost more than products."""


class ProductAttention(torch.autograd.Function):
    """Attends [N, H, L, D] over keys [N, K, S, D].

    A query sees the keys up to number `last_N1L`, which from one query to the next grows by one at most.
    """

    @staticmethod
    def forward(ctx: Any, q_NHLD: Tensor, k_NKSD: Tensor, v_NKSD: Tensor, last_N1L: Tensor) -> Tensor:
        # Weights stay the same if one vector is taken off all keys, and the scores, rounded to bfloat16, are smaller.
        k_XSD = (k_NKSD - k_NKSD.mean(2, keepdim=True)).flatten(0, 1)
        v_XSD, out_NHLD = v_NKSD.flatten(0, 1), torch.empty_like(q_NHLD)
        for rows, seen in _cut(q_NHLD, k_XSD, last_N1L):
            weights_XYE = _weigh(q_NHLD[rows], k_XSD[seen], last_N1L[rows])
            out_NHLD[rows] = (weights_XYE @ v_XSD[seen]).view_as(out_NHLD[rows])
        ctx.save_for_backward(q_NHLD, k_XSD, v_XSD, last_N1L)
        return out_NHLD

    @staticmethod
    def backward(ctx: Any, grad_NHLD: Tensor) -> tuple[Tensor | None, ...]:
        q_NHLD, k_XSD, v_XSD, last_N1L = ctx.saved_tensors
        of_q_NHLD = torch.empty_like(q_NHLD)
        # Chunks add to the gradients of the same keys, so these are summed in float32.
        of_k_XSD, of_v_XSD = (torch.zeros(x.shape) for x in (k_XSD, v_XSD))
        scale = q_NHLD.shape[-1] ** -0.5
        for rows, seen in _cut(q_NHLD, k_XSD, last_N1L):
            weights_XYE = _weigh(q_NHLD[rows], k_XSD[seen], last_N1L[rows])
            q_XYD, grad_XYD = (x[rows].reshape(len(weights_XYE), -1, x.shape[-1]) for x in (q_NHLD, grad_NHLD))
            of_v_XSD[seen] += weights_XYE.transpose(1, 2) @ grad_XYD
            of_weights_XYE = grad_XYD @ v_XSD[seen].transpose(1, 2)
            of_scores_XYE = torch.ops.aten._softmax_backward_data(of_weights_XYE, weights_XYE, -1, q_NHLD.dtype)
            of_q_NHLD[rows] = (of_scores_XYE @ k_XSD[seen]).view_as(of_q_NHLD[rows])
            of_k_XSD[seen] += of_scores_XYE.transpose(1, 2) @ q_XYD
        keys = (len(q_NHLD), -1)
        of_k_NKSD, of_v_NKSD = (x.to(q_NHLD.dtype).unflatten(0, keys) for x in (of_k_XSD * scale, of_v_XSD))
        return of_q_NHLD.mul_(scale), of_k_NKSD, of_v_NKSD, None


def _cut(q_NHLD: Tensor, k_XSD: Tensor, last_N1L: Tensor) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Yield where the queries of each chunk lie, and the keys of their segments up to the last one that any sees."""
    (count, heads, length), keys = q_NHLD.shape[:3], k_XSD.shape[1]
    size = max(FEWEST, CHUNK // (count * heads * keys))
    together = max(1, 2 * CHUNK // (size * heads * keys))
    kv_heads, root = len(k_XSD) // count, int(last_N1L[..., 0].max())
    for number in range(0, count, together):
        part = slice(number * kv_heads, (number + together) * kv_heads)
        for start in range(0, length, size):
            end = min(start + size, length)
            rows = slice(number, number + together), slice(None), slice(start, end)
            yield rows, (part, slice(min(root + end, keys)))


def _weigh(q_NHLD: Tensor, k_XED: Tensor, last_N1L: Tensor) -> Tensor:
    """Return the attention weights of a chunk, [X, Y, E]."""
    q_XYD = q_NHLD.reshape(len(k_XED), -1, q_NHLD.shape[-1])
    scores_XYE = torch.baddbmm(q_XYD.new_empty(()), q_XYD, k_XED.transpose(1, 2), beta=0, alpha=q_XYD.shape[-1] ** -0.5)
    first = int(last_N1L.min())  # no key before it is hidden
    hidden_N1LE = torch.arange(first, k_XED.shape[1]) > last_N1L[..., None]
    bias_N1LE = q_XYD.new_zeros(hidden_N1LE.shape).masked_fill_(hidden_N1LE, -math.inf)
    scores_XYE.view(*q_NHLD.shape[:3], -1)[..., first:].add_(bias_N1LE)
    return torch.softmax(scores_XYE, -1)
