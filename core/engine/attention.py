"""Computes the inference engine's attention over the KV cache: one class for prefill, one for decode.

Tensor suffixes: see core/engine/__init__.py. A slot of the cache holds the keys and values of one running sequence.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from core.engine.cache import round_up

QUERIES_PER_PIECE = 256
"""The mask of a cached prefix costs the products it hides; short pieces of a long prompt have few of these."""

CALL_PRODUCTS = 512
"""One call of the attention kernel costs about as much as this number of query-key products."""

TILE = 32
"""Cuts bfloat16 prompts on the CPU at every multiple of this position. The kernel adds up in an order that depends on
the shapes of its call. The tiles depend on positions alone, so a sequence is rounded alike when it is alone, beside
others or after a cached prefix."""

DECODE_ROWS = 8
"""Pads the query heads of a key head to a multiple of this number, for bfloat16 on the CPU. The kernel's second thread
takes its memory right after that of the first. With fewer rows that place is aligned otherwise, and the products are
added up in another order."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Describes consecutive new tokens of one sequence: `first` is their place on T, `start` their first position.

    The kernel computes `rows` queries for them, from position `begin` on. In a tile they are more than the new tokens.
    """

    slot: int
    first: int
    start: int
    length: int
    begin: int
    rows: int

    @property
    def products(self) -> int:
        """Count the query-key products that the kernel computes, those hidden by the causal mask included."""
        return self.rows * (self.begin + self.rows)


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Holds pieces that one call attends for: they begin at one position, and are padded to the first, the longest."""

    tokens_NL: Tensor
    """Leads to the queries on T. Columns before and after the tokens of a piece repeat its first and last one."""
    slots: slice | Tensor
    end: int
    mask_LS: Tensor | None
    """Is None where no token is cached: the kernel's own causal mask says the same."""


class PrefillAttention:
    """Writes the new tokens of N sequences into the cache and attends causally, each token to all before it.

    The sequences own consecutive slots from `first_slot` on. Sequence n has `starts[n]` tokens in its slot already and
    brings `lengths[n]` new ones; `positions_T` are the positions of the new tokens within their sequences.
    """

    def __init__(self, kv: Tensor, first_slot: int, starts: Sequence[int], lengths: Sequence[int], positions_T: Tensor):
        self.kv = kv
        self.positions_T = positions_T
        slots = range(first_slot, first_slot + len(lengths))
        slots_N = torch.tensor(slots, device=kv.device)
        self.slots_T = torch.repeat_interleave(slots_N, torch.tensor(lengths, device=kv.device))
        buckets = _fill_buckets(_cut(slots, starts, lengths, _must_round_alike(kv)))
        self.buckets = [_pad(bucket, kv.shape[4], kv.device) for bucket in buckets]
        # Where the token t of T lies among the padded outputs of all buckets, one after the other.
        row_of = [0] * sum(lengths)
        row = 0
        for pieces, bucket in zip(buckets, self.buckets, strict=True):
            for piece in pieces:
                start = row + piece.start - piece.begin
                row_of[piece.first : piece.first + piece.length] = range(start, start + piece.length)
                row += bucket.tokens_NL.shape[1]
        self.row_T = torch.tensor(row_of, device=kv.device)

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        keys, values = self.kv[0, layer], self.kv[1, layer]  # [slots, K, max_len, D]
        keys[self.slots_T, :, self.positions_T] = k_TKD
        values[self.slots_T, :, self.positions_T] = v_TKD
        outputs = [
            F.scaled_dot_product_attention(
                q_THD[bucket.tokens_NL].transpose(1, 2),
                keys[:, :, : bucket.end][bucket.slots],
                values[:, :, : bucket.end][bucket.slots],
                attn_mask=bucket.mask_LS,
                is_causal=bucket.mask_LS is None,
                enable_gqa=q_THD.shape[1] != k_TKD.shape[1],
            )
            for bucket in self.buckets
        ]
        return torch.cat([out_NHLD.transpose(1, 2).flatten(0, 1) for out_NHLD in outputs])[self.row_T]


def _must_round_alike(kv: Tensor) -> bool:
    """Return whether the engine promises that a sequence gets the same bits alone and beside others."""
    return kv.dtype == torch.bfloat16 and kv.device.type == "cpu"


def _cut(slots: Sequence[int], starts: Sequence[int], lengths: Sequence[int], tiled: bool) -> list[_Piece]:
    """Cut the new tokens into tiles; or those of the sequences that have cached ones into short pieces, no others."""
    pieces: list[_Piece] = []
    firsts = itertools.accumulate(lengths, initial=0)  # zip stops before the last sum, the end of T
    for slot, start, length, first in zip(slots, starts, lengths, firsts, strict=False):
        step = TILE if tiled else QUERIES_PER_PIECE if start else length
        position, end = start, start + length
        while position < end:
            begin = position - position % TILE if tiled else position
            count = min(begin + step, end) - position
            pieces.append(_Piece(slot, first + position - start, position, count, begin, rows=TILE if tiled else count))
            position += count
    return pieces


def _fill_buckets(pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    """Put pieces together that begin at one position, while padding adds at most a fifth, or less than a call."""
    buckets: list[list[_Piece]] = []
    for piece in sorted(pieces, key=lambda piece: (piece.begin, -piece.rows)):
        if buckets:
            longest = buckets[-1][0]
            padding = longest.products - piece.products
            if longest.begin == piece.begin and padding <= max(piece.products // 5, CALL_PRODUCTS):
                buckets[-1].append(piece)
                continue
        buckets.append([piece])
    return buckets


def _pad(bucket: Sequence[_Piece], max_len: int, device: torch.device) -> _Bucket:
    begin = bucket[0].begin
    end = min(begin + round_up(bucket[0].rows), max_len)
    firsts_N = torch.tensor([piece.first for piece in bucket], device=device)
    starts_N = torch.tensor([piece.start for piece in bucket], device=device)
    lengths_N = torch.tensor([piece.length for piece in bucket], device=device)
    positions_L = torch.arange(begin, end, device=device)
    offsets_NL = (positions_L - starts_N[:, None]).clamp(min=0)
    tokens_NL = firsts_N[:, None] + torch.minimum(offsets_NL, lengths_N[:, None] - 1)
    slots = [piece.slot for piece in bucket]
    # Neighbours are read where they lie; others are gathered.
    neighbours = slots == list(range(slots[0], slots[0] + len(slots)))
    mask_LS: Tensor | None = None
    if begin and device.type == "cuda":
        mask_LS = causal_lower_right(end - begin, end)  # lets the flash kernel mask by itself
    elif begin:
        mask_LS = torch.arange(end, device=device) <= positions_L[:, None]
    return _Bucket(
        tokens_NL,
        slice(slots[0], slots[0] + len(slots)) if neighbours else torch.tensor(slots, device=device),
        end,
        mask_LS,
    )


class DecodeAttention:
    """Writes one new token for each sequence in slots 0..N-1 and attends to all tokens before it.

    T is N here. The query heads that share a key head form one matrix, so keys and values are never repeated.
    """

    def __init__(self, kv: Tensor, positions_N: Tensor, longest: int):
        self.kv = kv
        self.positions_N = positions_N
        self.end = min(round_up(longest), kv.shape[4])
        self.slots_N = torch.arange(len(positions_N), device=kv.device)
        # Positions after a sequence's newest token hold what an earlier owner of the slot left there.
        after_NS = torch.arange(self.end, device=kv.device) > positions_N[:, None]
        self.bias_NS = torch.zeros(after_NS.shape, dtype=kv.dtype, device=kv.device).masked_fill_(after_NS, -torch.inf)

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        count, kv_heads, head_dim = k_TKD.shape
        keys, values = self.kv[0, layer, :count], self.kv[1, layer, :count]
        keys[self.slots_N, :, self.positions_N] = k_TKD
        values[self.slots_N, :, self.positions_N] = v_TKD
        # [N, K, H / K, D]: the heads of a group take the place that the tokens of a sequence have in prefill.
        grouped_q = q_THD.view(count, kv_heads, -1, head_dim)
        group = grouped_q.shape[2]
        if _must_round_alike(self.kv):
            grouped_q = F.pad(grouped_q, (0, 0, 0, -group % DECODE_ROWS))
        out = F.scaled_dot_product_attention(
            grouped_q, keys[:, :, : self.end], values[:, :, : self.end], attn_mask=self.bias_NS[:, None, None]
        )
        return out[:, :, :group].flatten(1, 2)
