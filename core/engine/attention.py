"""Attention of the inference engine over the KV cache: a forward of new prompts, and a forward of one token each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


class PrefillAttention:
    """New tokens of sequences in consecutive slots, each after `starts[i]` cached ones: write them, attend causally."""

    def __init__(self, kv: Tensor, first_slot: int, starts: Sequence[int], lengths: Sequence[int], positions_T: Tensor):
        self.kv, self.rows, self.longest = kv, len(lengths), max(lengths)
        self.slots = slice(first_slot, first_slot + self.rows)
        device = kv.device
        lengths_N = torch.tensor(lengths, device=device)
        self.row_T = torch.repeat_interleave(torch.arange(self.rows, device=device), lengths_N)
        starts_N = torch.tensor(starts, device=device)
        self.column_T, self.position_T = positions_T - starts_N[self.row_T], positions_T
        self.end = max(s + n for s, n in zip(starts, lengths, strict=True))
        self.mask = None
        if any(starts):
            queries_NL = starts_N[:, None] + torch.arange(self.longest, device=device)
            self.mask = (torch.arange(self.end, device=device) <= queries_NL[..., None])[:, None]

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        keys, values = self.kv[0, layer, self.slots], self.kv[1, layer, self.slots]
        keys[self.row_T, :, self.position_T] = k_TKD
        values[self.row_T, :, self.position_T] = v_TKD
        q = q_THD.new_zeros(self.rows, self.longest, *q_THD.shape[1:])
        q[self.row_T, self.column_T] = q_THD
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), keys[:, :, : self.end], values[:, :, : self.end],
            attn_mask=self.mask, is_causal=self.mask is None, enable_gqa=q_THD.shape[1] != k_TKD.shape[1],
        )  # fmt: skip
        return out.transpose(1, 2)[self.row_T, self.column_T]


class DecodeAttention:
    """One new token for each of the sequences in slots 0..N-1: write it, attend to all before it.

    Query heads that share a key head form one matrix, so keys and values are never repeated.
    """

    def __init__(self, kv: Tensor, positions_N: Tensor, longest: int):
        self.kv, self.positions_N, self.end = kv, positions_N, longest
        self.rows_N = torch.arange(len(positions_N), device=kv.device)
        after_NS = torch.arange(longest, device=kv.device) > positions_N[:, None]
        self.bias = torch.zeros(after_NS.shape, dtype=kv.dtype, device=kv.device).masked_fill_(after_NS, -torch.inf)

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        n, kv_heads, head_dim = k_TKD.shape
        keys, values = self.kv[0, layer, :n], self.kv[1, layer, :n]
        keys[self.rows_N, :, self.positions_N] = k_TKD
        values[self.rows_N, :, self.positions_N] = v_TKD
        q = q_THD.view(n, kv_heads, -1, head_dim)
        return F.scaled_dot_product_attention(
            q, keys[:, :, : self.end], values[:, :, : self.end], attn_mask=self.bias[:, None, None]
        ).flatten(1, 2)
