"""Computes the engine's attention over the KV cache: `StepAttention` writes it and calls the class for the tokens.

Tensor suffixes: see core/__init__.py and varlen.py. Here P counts the pages of a sequence, padded with the
null page.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from core.engine.cache import NULL_PAGE, PagedCache, round_up
from core.engine.kernel import DTYPES, attend_pages, find_kernel
from core.engine.scores import Scores, attend_by_scores
from core.engine.states import Advance, Recurrence, StateCache
from core.engine.varlen import VarlenCall, has_varlen

QUERIES_PER_PIECE = 256
"""With a mask the kernel also computes the products that the mask hides. Shorter pieces of a prompt hide fewer."""

CALL_PRODUCTS = 512
"""One call of the attention kernel costs about as much as this number of query-key products."""

GATHERED_BYTES = 1 << 28
"""Limits the keys and values that are gathered for one call."""

TILE = 32
"""Cuts bfloat16 prompts on the CPU at every multiple of this position. The kernel adds up in an order that depends on
the shapes of its call. The tiles depend on positions alone, so a sequence is rounded alike when it is alone, beside
others or after a cached prefix."""

DECODE_ROWS = 8
"""Pads the query heads of a key head to a multiple of this number, for bfloat16 on the CPU. The kernel's second thread
takes its memory right after that of the first. With fewer rows that place is aligned otherwise, and the products are
added up in another order."""


class Span(NamedTuple):
    """Describes the tokens that a step computes for one sequence: `length` tokens from position `start` on.

    Its states lie in `slot`, if the model has any.
    """

    pages: Sequence[int]
    start: int
    length: int
    slot: int = 0


@dataclass(slots=True)
class StepAttention:
    """Writes the new tokens of a step into the cache and attends causally, each token to all before it.

    On T lie the `count` tokens of the sequences that decode, one each, and then those of the sequences that prefill.
    """

    cache: PagedCache
    places_T: Tensor
    count: int
    decode: DecodeAttention | None = None
    prefill: PrefillAttention | VarlenPrefill | None = None
    recur: StepRecurrence | None = None
    """Computes the layers that have states."""

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, scores: Scores | None = None) -> Tensor:
        row = self.cache.rows[layer]
        self.cache.kv[0, row].index_copy_(0, self.places_T, k_TKD)
        self.cache.kv[1, row].index_copy_(0, self.places_T, v_TKD)
        parts = [(self.decode, q_THD[: self.count]), (self.prefill, q_THD[self.count :])]
        outputs = [attend(row, queries, scores) for attend, queries in parts if attend is not None]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


class StepRecurrence:
    """Feeds the new tokens of a step to layers with states, which it reads from the slots and writes back."""

    def __init__(self, states: StateCache, spans: Sequence[Span], firsts: Sequence[int]):
        self.states = states
        self.slots_N = torch.tensor([span.slot for span in spans], device=states.device)
        self.recurrence = Recurrence(firsts, [span.length for span in spans], states.device)

    def __call__(self, layer: int, advance: Advance, *inputs: Tensor) -> Tensor:
        outputs_T, ends = self.recurrence(advance, inputs, self.states.read(layer, self.slots_N))
        self.states.write(layer, self.slots_N, ends)
        return outputs_T


def prepare_step(cache: PagedCache, decode: Sequence[Span], prefill: Sequence[Span]) -> tuple[Tensor, StepAttention]:
    """Return the positions of a step's tokens within their sequences, [T], and the attention of the step."""
    spans = [*decode, *prefill]
    longest = max(span.start + span.length for span in spans)
    # Tiles may reach beyond the end of a prompt.
    table_NP = make_table(cache, [span.pages for span in spans], longest + TILE).to(cache.device)
    starts_N = np.array([span.start for span in spans])
    lengths_N = np.array([span.length for span in spans])
    # The running sums of the lengths, each less its length, are where the sequences begin on T.
    firsts_N = np.cumsum(lengths_N) - lengths_N
    positions = np.arange(lengths_N.sum()) + np.repeat(starts_N - firsts_N, lengths_N)
    positions_T = torch.from_numpy(positions).to(cache.device)
    sequences_T = torch.from_numpy(np.repeat(np.arange(len(spans)), lengths_N)).to(cache.device)
    attend = StepAttention(cache, find_places(cache, table_NP, sequences_T, positions_T), len(decode))
    if cache.states is not None:
        attend.recur = StepRecurrence(cache.states, spans, firsts_N.tolist())
    if decode:
        width = cache.count_pages(1 + max(span.start for span in decode))
        attend.decode = DecodeAttention(cache, table_NP[: len(decode), :width], positions_T[: len(decode)])
    if prefill:
        sizes = cache.config.num_heads, cache.config.num_kv_heads, cache.config.head_dim
        varlen = not cache.config.other and has_varlen(cache.device, cache.dtype, *sizes)
        kind = VarlenPrefill if varlen else PrefillAttention
        attend.prefill = kind(cache, table_NP[len(decode) :], prefill)
    return positions_T, attend


def prepare_decode(cache: PagedCache, table_NP: Tensor, positions_N: Tensor) -> StepAttention:
    """Return the attention of a step in which all sequences decode; a CUDA graph can replay it with other numbers."""
    sequences_N = torch.arange(len(table_NP), device=cache.device)
    places_N = find_places(cache, table_NP, sequences_N, positions_N)
    return StepAttention(cache, places_N, len(table_NP), DecodeAttention(cache, table_NP, positions_N))


def make_table(cache: PagedCache, pages: Sequence[Sequence[int]], length: int) -> Tensor:
    """Return the pages of the first `length` tokens of each sequence as int32 [N, P], padded with the null page."""
    width = cache.count_pages(length)
    table_NP = np.full((len(pages), width), NULL_PAGE, dtype=np.int32)
    for row_P, numbers in zip(table_NP, pages, strict=True):
        row_P[: len(numbers)] = numbers[:width]
    return torch.from_numpy(table_NP)


def find_places(cache: PagedCache, table_NP: Tensor, sequences: Tensor, positions: Tensor) -> Tensor:
    """Return where in the cache the positions of the sequences lie; the shapes of the two tensors broadcast."""
    page, offset = positions // cache.page_size, positions % cache.page_size
    return table_NP[sequences, page].long() * cache.page_size + offset


class VarlenPrefill:
    """Attends for the new tokens of N sequences with the varlen kernel. Their keys and values lie in the cache already.

    A call gathers the keys and values of as many sequences as `GATHERED_BYTES` allow.
    """

    def __init__(self, cache: PagedCache, table_NP: Tensor, spans: Sequence[Span]):
        self.cache = cache
        parts: list[list[int]] = []  # the numbers of the sequences of each call
        room = 0
        for sequence, (_, start, length, _) in enumerate(spans):
            if start + length > room:
                parts.append([])
                room = _count_gathered(cache.kv[0, 0], 1)
            parts[-1].append(sequence)
            room -= start + length
        self.calls = [_make_varlen_call(cache, table_NP, spans, part) for part in parts]

    def __call__(self, layer: int, q_THD: Tensor, scores: Scores | None = None) -> Tensor:
        assert scores is None, "only other families have scores, and they are padded"
        keys, values = self.cache.kv[0, layer], self.cache.kv[1, layer]  # [places, K, D]
        queries = q_THD.split([call.count for call in self.calls])
        return torch.cat([call(q, keys, values) for call, q in zip(self.calls, queries, strict=True)])


def _make_varlen_call(
    cache: PagedCache, table_NP: Tensor, spans: Sequence[Span], sequences: Sequence[int]
) -> VarlenCall:
    query_lengths = [spans[sequence].length for sequence in sequences]
    key_lengths = [spans[sequence].start + spans[sequence].length for sequence in sequences]
    sequences_Y = torch.from_numpy(np.repeat(sequences, key_lengths)).to(cache.device)
    positions_Y = torch.from_numpy(np.concatenate([np.arange(length) for length in key_lengths])).to(cache.device)
    places_Y = find_places(cache, table_NP, sequences_Y, positions_Y)
    return VarlenCall.make(query_lengths, key_lengths, places_Y)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Describes consecutive new tokens of one sequence: `first` is their place on T, `start` their first position.

    The kernel computes `rows` queries for them, from position `begin` on. In a tile they are more than the new tokens.
    """

    sequence: int
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
    places_NS: Tensor
    """Leads to the keys and values in the cache."""
    mask_LS: Tensor | None
    """Holds the mask, None where the pieces begin at position 0: the kernel's own causal mask says the same."""

    def attend(self, q_NLHD: Tensor, k_NSKD: Tensor, v_NSKD: Tensor, scores: Scores | None) -> Tensor:
        """Return the attended values, [N, H, L, D]."""
        q_NHLD, k_NKSD, v_NKSD = (x.transpose(1, 2) for x in (q_NLHD, k_NSKD, v_NSKD))
        if scores is None:
            causal, grouped = self.mask_LS is None, q_NHLD.shape[1] != k_NKSD.shape[1]
            return F.scaled_dot_product_attention(
                q_NHLD, k_NKSD, v_NKSD, attn_mask=self.mask_LS, is_causal=causal, enable_gqa=grouped
            )
        return attend_by_scores(scores, q_NHLD, k_NKSD, v_NKSD)


class PrefillAttention:
    """Attends for the new tokens of N sequences, padded to buckets. Their keys and values lie in the cache already."""

    def __init__(self, cache: PagedCache, table_NP: Tensor, spans: Sequence[Span]):
        self.cache = cache
        buckets = _fill_buckets(cache, _cut(spans, _must_round_alike(cache.kv)))
        self.buckets = [_pad(cache, table_NP, bucket) for bucket in buckets]
        # Where the token t of T lies among the padded outputs of all buckets, one after the other.
        row_of = [0] * sum(span.length for span in spans)
        row = 0
        for pieces, bucket in zip(buckets, self.buckets, strict=True):
            for piece in pieces:
                start = row + piece.start - piece.begin
                row_of[piece.first : piece.first + piece.length] = range(start, start + piece.length)
                row += bucket.tokens_NL.shape[1]
        self.row_T = torch.tensor(row_of, device=cache.device)

    def __call__(self, layer: int, q_THD: Tensor, scores: Scores | None = None) -> Tensor:
        keys, values = self.cache.kv[0, layer], self.cache.kv[1, layer]  # [places, K, D]
        outputs = [
            bucket.attend(q_THD[bucket.tokens_NL], keys[bucket.places_NS], values[bucket.places_NS], scores)
            for bucket in self.buckets
        ]
        return torch.cat([out_NHLD.transpose(1, 2).flatten(0, 1) for out_NHLD in outputs])[self.row_T]


def _must_round_alike(keys: Tensor) -> bool:
    """Return whether the engine promises that a sequence gets the same bits alone and beside others."""
    return keys.dtype == torch.bfloat16 and keys.device.type == "cpu"


def _cut(spans: Sequence[Span], tiled: bool) -> list[_Piece]:
    """Cut the new tokens into tiles if `tiled`; else only those of sequences with cached tokens, into short pieces."""
    pieces: list[_Piece] = []
    firsts = itertools.accumulate((span.length for span in spans), initial=0)  # zip drops the last sum, the end of T
    for sequence, ((_, start, length, _), first) in enumerate(zip(spans, firsts, strict=False)):
        step = TILE if tiled else QUERIES_PER_PIECE if start else length
        position, end = start, start + length
        while position < end:
            begin = position - position % TILE if tiled else position
            count = min(begin + step, end) - position
            rows = TILE if tiled else count
            pieces.append(_Piece(sequence, first + position - start, position, count, begin, rows))
            position += count
    return pieces


def _count_gathered(keys: Tensor, places: int) -> int:
    """Return how many sequences one call may gather, if each has `places` keys and as many values."""
    return max(1, GATHERED_BYTES // (places * 2 * keys[0].nbytes))


def _fill_buckets(cache: PagedCache, pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    """Put pieces together that begin at one position, while padding adds a fifth, or what a call costs, at most."""
    buckets: list[list[_Piece]] = []
    for piece in sorted(pieces, key=lambda piece: (piece.begin, -piece.rows)):
        if buckets:
            longest = buckets[-1][0]
            padding = longest.products - piece.products
            room = len(buckets[-1]) < _count_gathered(cache.kv[0, 0], longest.begin + longest.rows)
            if room and longest.begin == piece.begin and padding <= max(piece.products // 5, CALL_PRODUCTS):
                buckets[-1].append(piece)
                continue
        buckets.append([piece])
    return buckets


def _pad(cache: PagedCache, table_NP: Tensor, bucket: Sequence[_Piece]) -> _Bucket:
    begin, device = bucket[0].begin, cache.device
    end = begin + round_up(bucket[0].rows)
    firsts_N = torch.tensor([piece.first for piece in bucket], device=device)
    starts_N = torch.tensor([piece.start for piece in bucket], device=device)
    lengths_N = torch.tensor([piece.length for piece in bucket], device=device)
    sequences_N = torch.tensor([piece.sequence for piece in bucket], device=device)
    positions_L = torch.arange(begin, end, device=device)
    offsets_NL = (positions_L - starts_N[:, None]).clamp(min=0)
    tokens_NL = firsts_N[:, None] + torch.minimum(offsets_NL, lengths_N[:, None] - 1)
    positions_S = torch.arange(end, device=device)
    mask_LS: Tensor | None = None
    if begin and device.type == "cuda":
        mask_LS = causal_lower_right(end - begin, end)  # lets the flash kernel mask by itself
    elif begin:
        mask_LS = positions_S <= positions_L[:, None]
    return _Bucket(tokens_NL, find_places(cache, table_NP, sequences_N[:, None], positions_S), mask_LS)


PageKernel = Callable[..., Tensor]
"""Maps (q_NHD, keys, values, table_NP, lengths_N, page_size) to [N, H, D]: each query sees the first tokens of its
sequence. Keys and values are [places, K, D]."""


class DecodeAttention:
    """Attends for one new token of each of N sequences, whose keys and values lie in the cache already. T is N here."""

    def __init__(self, cache: PagedCache, table_NP: Tensor, positions_N: Tensor):
        self.cache, self.table_NP = cache, table_NP
        self.lengths_N = lengths_N = positions_N + 1
        kernel = _find_page_kernel(cache)
        self.attend: Callable[[Tensor, Tensor, Tensor], Tensor] = (
            self.gathered
            if kernel is None
            else functools.partial(kernel, table_NP=table_NP, lengths_N=lengths_N, page_size=cache.page_size)
        )

    @functools.cached_property
    def gathered(self) -> GatheredPages:
        """Attends without a kernel of ours."""
        return GatheredPages(self.cache, self.table_NP, self.lengths_N)

    def __call__(self, layer: int, q_NHD: Tensor, scores: Scores | None = None) -> Tensor:
        keys, values = self.cache.kv[0, layer], self.cache.kv[1, layer]
        if scores is not None:
            return self.gathered.attend_by(scores, q_NHD, keys, values)
        return self.attend(q_NHD.contiguous(), keys, values)


def _find_page_kernel(cache: PagedCache) -> PageKernel | None:
    """Return our kernel that reads pages, in C++ on CPUs and in Triton on CUDA, if it runs here."""
    if cache.device.type == "cpu" and cache.dtype in DTYPES and (library := find_kernel()) is not None:
        return functools.partial(attend_pages, library)
    if cache.device.type == "cuda":
        config = cache.config
        heads = config.num_heads, config.num_kv_heads, config.head_dim
        return _find_triton_kernel(cache.device, cache.dtype, *heads, cache.page_size)
    return None


@functools.cache
def _find_triton_kernel(
    device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, page_size: int
) -> PageKernel | None:
    try:
        from core.engine import paged_attention
    except ImportError:  # a PyTorch without Triton
        return None
    runs = paged_attention.has_paged_attention(device, dtype, heads, kv_heads, head_dim, page_size)
    return paged_attention.attend_pages if runs else None


class GatheredPages:
    """Gathers the keys and values of as many sequences as `GATHERED_BYTES` allow, for PyTorch's own kernel.

    Where they lie and which are seen is the same in every layer. The query heads that share a key head form one matrix,
    so keys and values are never repeated.
    """

    def __init__(self, cache: PagedCache, table_NP: Tensor, lengths_N: Tensor):
        sequences_N1 = torch.arange(len(table_NP), device=cache.device)[:, None]
        positions_S = torch.arange(table_NP.shape[1] * cache.page_size, device=cache.device)
        # Positions after a sequence's newest token hold what an earlier owner of the page left there.
        after_NS = positions_S >= lengths_N[:, None]
        bias_NS = torch.zeros(after_NS.shape, dtype=cache.dtype, device=cache.device)
        bias_NS.masked_fill_(after_NS, -torch.inf)
        count = _count_gathered(cache.kv[0, 0], len(positions_S))
        places_NS = find_places(cache, table_NP, sequences_N1, positions_S)
        self.parts = list(zip(places_NS.split(count), bias_NS.split(count), strict=True))
        self.lengths_N, self.positions_S = lengths_N, positions_S

    @functools.cached_property
    def distances(self) -> Sequence[Tensor]:
        """How far before its newest token each position of a sequence is, [N, S], for each part."""
        return (self.lengths_N[:, None] - 1 - self.positions_S).split([len(places) for places, _ in self.parts])

    def attend_by(self, scores: Scores, q_NHD: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return the attended values [N, H, D] of a layer with scores of its own."""
        queries = q_NHD[:, :, None].split([len(places_NS) for places_NS, _ in self.parts])
        outputs = [
            attend_by_scores(scores, q, keys[at].transpose(1, 2), values[at].transpose(1, 2), distance_NS[:, None])
            for q, (at, _), distance_NS in zip(queries, self.parts, self.distances, strict=True)
        ]
        return torch.cat(outputs)[:, :, 0]

    def __call__(self, q_NHD: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        # [N, K, H / K, D]: the heads of a group take the place that the tokens of a sequence have in prefill.
        grouped_q = q_NHD.unflatten(1, (keys.shape[1], -1))
        group = grouped_q.shape[2]
        if _must_round_alike(keys):
            grouped_q = F.pad(grouped_q, (0, 0, 0, -group % DECODE_ROWS))
        queries = grouped_q.split([len(bias_NS) for _, bias_NS in self.parts])
        outputs = [
            F.scaled_dot_product_attention(
                q, keys[places_NS].transpose(1, 2), values[places_NS].transpose(1, 2), attn_mask=bias_NS[:, None, None]
            )
            for q, (places_NS, bias_NS) in zip(queries, self.parts, strict=True)
        ]
        return torch.cat(outputs)[:, :, :group].flatten(1, 2)
