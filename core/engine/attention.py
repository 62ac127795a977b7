"""Computes the inference engine's attention over the KV cache: one class for prefill, one for decode.

Tensor suffixes: see core/engine/__init__.py. A slot of the cache holds the keys and values of one running sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


class PrefillAttention:
    """Writes the new tokens of N sequences into the cache and attends causally, each token to all before it.

    The sequences own consecutive slots from `first_slot` on. Sequence n has `starts[n]` tokens in its slot already and
    brings `lengths[n]` new ones; `positions_T` are the positions of the new tokens within their sequences.
    """

    def __init__(self, kv: Tensor, first_slot: int, starts: Sequence[int], lengths: Sequence[int], positions_T: Tensor):
        self.kv = kv
        self.count = len(lengths)
        self.longest = max(lengths)
        self.slots = slice(first_slot, first_slot + self.count)
        device = kv.device
        # New token t belongs to sequence_T[t]. Its key goes to position positions_T[t] of that sequence's slot, its
        # query to column_T[t] of the padded queries [N, L]: the columns count new tokens only.
        lengths_N = torch.tensor(lengths, device=device)
        self.sequence_T = torch.repeat_interleave(torch.arange(self.count, device=device), lengths_N)
        starts_N = torch.tensor(starts, device=device)
        self.positions_T = positions_T
        self.column_T = positions_T - starts_N[self.sequence_T]
        # S: keys are read up to the end of the sequence that reaches furthest.
        self.end = max(s + n for s, n in zip(starts, lengths, strict=True))
        self.mask_N1LS = None
        if any(starts):
            # The query in column l of sequence n stands at position starts[n] + l and sees the keys up to there.
            # Without cached tokens L == S, and the kernel's own causal mask says the same.
            positions_NL = starts_N[:, None] + torch.arange(self.longest, device=device)
            self.mask_N1LS = (torch.arange(self.end, device=device) <= positions_NL[..., None])[:, None]

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        # Views of the cache, [N, K, max_len, D]: row n is the slot of sequence n.
        keys, values = self.kv[0, layer, self.slots], self.kv[1, layer, self.slots]
        keys[self.sequence_T, :, self.positions_T] = k_TKD
        values[self.sequence_T, :, self.positions_T] = v_TKD
        q_NLHD = q_THD.new_zeros(self.count, self.longest, *q_THD.shape[1:])
        q_NLHD[self.sequence_T, self.column_T] = q_THD
        out_NHLD = F.scaled_dot_product_attention(
            q_NLHD.transpose(1, 2), keys[:, :, : self.end], values[:, :, : self.end],
            attn_mask=self.mask_N1LS, is_causal=self.mask_N1LS is None, enable_gqa=q_THD.shape[1] != k_TKD.shape[1],
        )  # fmt: skip
        return out_NHLD.transpose(1, 2)[self.sequence_T, self.column_T]


class DecodeAttention:
    """Writes one new token for each sequence in slots 0..N-1 and attends to all tokens before it.

    T is N here. The query heads that share a key head form one matrix, so keys and values are never repeated.
    """

    def __init__(self, kv: Tensor, positions_N: Tensor, longest: int):
        self.kv = kv
        self.positions_N = positions_N
        self.end = longest
        self.slots_N = torch.arange(len(positions_N), device=kv.device)
        # Positions after a sequence's newest token hold what an earlier owner of the slot left there.
        after_NS = torch.arange(longest, device=kv.device) > positions_N[:, None]
        self.bias_NS = torch.zeros(after_NS.shape, dtype=kv.dtype, device=kv.device).masked_fill_(after_NS, -torch.inf)

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        count, kv_heads, head_dim = k_TKD.shape
        keys, values = self.kv[0, layer, :count], self.kv[1, layer, :count]
        keys[self.slots_N, :, self.positions_N] = k_TKD
        values[self.slots_N, :, self.positions_N] = v_TKD
        # [N, K, H / K, D]: the heads of a group take the place that the tokens of a sequence have in prefill.
        grouped_q = q_THD.view(count, kv_heads, -1, head_dim)
        return F.scaled_dot_product_attention(
            grouped_q, keys[:, :, : self.end], values[:, :, : self.end], attn_mask=self.bias_NS[:, None, None]
        ).flatten(1, 2)
