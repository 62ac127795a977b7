"""Packs rows for training: one after the other without padding, and a prompt that several rows share only once.

Rows that begin alike form a tree: a root (the shared prefix), then one branch per row; a lone row is a root. Every
token attends exactly as it would in its own row, so losses and gradients are those of the separate rows. The tokens
after the last position that predicts a trained token are not packed: nothing depends on them.

Tensor suffixes (core/__init__.py): T lists the tokens of all roots first, then those of all branches; N counts
the segments of one kind, roots or branches; R are the trained response tokens, row after row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from core.engine.scores import Scores, attend_by_scores
from core.engine.states import Advance, Recurrence, State
from core.engine.varlen import VarlenCall, find_dtype, has_varlen
from core.train.products import ProductAttention
from core.types import Row

MIN_SHARED = 16
"""Sets the shortest common prefix, in tokens, that is worth a tree."""
PADDING = 0.1
"""Sets how much of a bucket's query-key products may be padding, relative to the exact products."""
BUCKET_PRODUCTS = 2048
"""Sets the number of query-key products that cost as much as one more bucket: some 0.1 ms on a CPU."""
KEYS_PER_TOKEN = 16
"""A branch repeats the keys of its root, which takes memory: this many of them count as one token of a pack."""


@dataclass(frozen=True)
class Tree:
    """Names the rows (by index) that share their first `root` tokens; a lone row is all root.

    `length` is the number of tokens in the pack: the root once, and every branch. `cost` is what the tree takes of the
    pack's limit: its tokens, and one for every `KEYS_PER_TOKEN` keys that its branches repeat.
    """

    rows: tuple[int, ...]
    root: int
    length: int

    @property
    def cost(self) -> int:
        return _tree_cost(len(self.rows), self.root, self.length)


@dataclass(frozen=True)
class Pack:
    """Holds the tensors of one forward.

    `predict_R` are the places on T of the tokens whose logits predict the trained ones, `targets_R` the trained ids,
    and `row_R` the row of each as an index into `row_indices`, which lists the rows of the batch that are in this pack.
    """

    row_indices: tuple[int, ...]
    ids_T: Tensor
    positions_T: Tensor
    attend: PackedAttention
    predict_R: Tensor
    targets_R: Tensor
    row_R: Tensor

    def spread(self, values: Sequence[float]) -> Tensor:
        """Spread one float per row of the batch over the row's trained tokens, float32 [R]."""
        packed = torch.tensor([values[i] for i in self.row_indices], device=self.ids_T.device, dtype=torch.float32)
        return packed[self.row_R]

    def gather(self, values: Sequence[Sequence[float]], masks: Sequence[Sequence[int]]) -> Tensor:
        """Gather the trained entries of one sequence of floats per row of the batch, float32 [R]."""
        flat = [v for i in self.row_indices for v, m in zip(values[i], masks[i], strict=True) if m]
        return torch.tensor(flat, device=self.ids_T.device, dtype=torch.float32)

    def scatter(self, values_R: Tensor, masks: Sequence[Sequence[int]]) -> dict[int, list[float]]:
        """Return one sequence of floats for each row of this pack, by index: what `gather` took, with 0 elsewhere."""
        # R lists the trained tokens row after row, in the order of `row_indices`.
        values = iter(values_R.tolist())
        return {i: [next(values) if trained else 0.0 for trained in masks[i]] for i in self.row_indices}


def pack_rows(rows: Sequence[Row], max_tokens: int, device: torch.device) -> list[Pack]:
    """Split `rows` into packs that cost at most `max_tokens` (one longer row makes a pack of its own).

    Trees with roots of similar length come together, since attention pads within a pack.
    """
    packs: list[list[Tree]] = []
    free = 0  # what still fits into the last pack
    for tree in sorted(grow_trees(rows, max_tokens), key=lambda tree: (-tree.root, tree.rows)):
        if not packs or tree.cost > free:
            packs.append([])
            free = max_tokens
        packs[-1].append(tree)
        free -= tree.cost
    return [_pack(rows, trees, device) for trees in packs]


def grow_trees(rows: Sequence[Row], max_tokens: int) -> list[Tree]:
    """Put every row into one tree, so that all trees together have the fewest tokens.

    A tree is a run of neighbours in lexical order, since rows that begin alike are neighbours there. So the best trees
    of the first n rows are the best ones of some fewer rows and one tree more.
    """
    order = sorted(range(len(rows)), key=lambda i: (rows[i].tokens, i))
    lengths = [_needed_length(rows[i]) for i in order]
    # Entry n is the number of tokens that the prompts of rows n - 1 and n of the order have in common.
    shared = [0, *(_count_shared(rows[a], rows[b]) for a, b in pairwise(order))]
    # Entry n of `fewest` is the number of tokens of the first n rows; entry n - 1 of `last` says what their last tree
    # is: where it starts, its root and its length.
    fewest, last = [0], list[tuple[int, int, int]]()
    for end in range(1, len(order) + 1):
        root, length = lengths[end - 1], lengths[end - 1]
        best = (fewest[end - 1] + length, end - 1, root, length)
        total = length
        for start in range(end - 2, -1, -1):
            count, total = end - start, total + lengths[start]
            root = min(root, shared[start + 1])
            length = total - (count - 1) * root
            if root < MIN_SHARED or _tree_cost(count, root, length) > max_tokens:
                break
            best = min(best, (fewest[start] + length, start, root, length))
        fewest.append(best[0])
        last.append(best[1:])
    trees: list[Tree] = []
    end = len(order)
    while end:
        start, root, length = last[end - 1]
        trees.append(Tree(tuple(order[start:end]), root, length))
        end = start
    return trees[::-1]


def _tree_cost(count: int, root: int, length: int) -> int:
    return length + (count * root // KEYS_PER_TOKEN if count > 1 else 0)


def _count_shared(a: Row, b: Row) -> int:
    """Count the tokens that two prompts begin with alike. A root never reaches into a response."""
    limit = min(_prompt_length(a), _prompt_length(b))
    if a.tokens[:limit] == b.tokens[:limit]:
        return limit
    return next(i for i in range(limit) if a.tokens[i] != b.tokens[i])


def _prompt_length(row: Row) -> int:
    return len(row.tokens) - len(row.loss_mask)


def _needed_length(row: Row) -> int:
    """Count the tokens up to the last one that predicts a trained one (the whole prompt when nothing is trained)."""
    # The token at response offset o stands at prompt length + o; the token before it, which predicts it, ends the row.
    last = max((offset for offset, trained in enumerate(row.loss_mask) if trained), default=0)
    return _prompt_length(row) + last


def _pack(rows: Sequence[Row], trees: Sequence[Tree], device: torch.device) -> Pack:
    # One entry per token of the pack, T:
    ids: list[int] = []
    positions: list[int] = []
    # One entry per trained token, R:
    predict: list[int] = []
    targets: list[int] = []
    row_numbers: list[int] = []
    # One entry per row of the pack:
    row_indices: list[int] = []
    # One entry per root, and one per branch:
    root_starts: list[int] = []
    branch_lengths: list[int] = []
    branch_roots: list[int] = []
    for tree in trees:
        root_starts.append(len(ids))
        ids += rows[tree.rows[0]].tokens[: tree.root]
        positions += range(tree.root)
    for number, tree in enumerate(trees):
        for index in tree.rows:
            row, needed = rows[index], _needed_length(rows[index])
            # The branch follows at len(ids), where the row's token number `tree.root` will lie; so the row's token p
            # lies at branch_start + p on T if p >= tree.root, and at root_starts[number] + p if it is of the root.
            branch_start = len(ids) - tree.root
            if needed > tree.root:
                ids += row.tokens[tree.root : needed]
                positions += range(tree.root, needed)
                branch_lengths.append(needed - tree.root)
                branch_roots.append(number)
            for token, trained in enumerate(row.loss_mask, start=_prompt_length(row)):
                if trained:
                    # Token p is predicted by token p - 1, which is the last of the root when p == tree.root.
                    predict.append((root_starts[number] if token <= tree.root else branch_start) + token - 1)
                    targets.append(row.tokens[token])
                    row_numbers.append(len(row_indices))
            row_indices.append(index)

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, device=device, dtype=torch.long)

    return Pack(
        row_indices=tuple(row_indices),
        ids_T=tensor(ids),
        positions_T=tensor(positions),
        attend=PackedAttention([tree.root for tree in trees], branch_lengths, branch_roots, device),
        predict_R=tensor(predict),
        targets_R=tensor(targets),
        row_R=tensor(row_numbers),
    )


class PackedAttention:
    """Attends causally within every root; every branch attends to the whole of its root and causally to itself.

    Root i has `roots[i]` tokens; branch i has `branches[i]` tokens and belongs to root number `branch_roots[i]`. On T
    lie the roots, then the branches. Only layers with states, and attention that the varlen kernel does not compute,
    pad.
    """

    def __init__(
        self, roots: Sequence[int], branches: Sequence[int], branch_roots: Sequence[int], device: torch.device
    ):
        root_starts = _offsets(roots)
        branch_starts = [sum(roots) + offset for offset in _offsets(branches)]
        segments = [_Segment(start, length, 0, 0) for start, length in zip(root_starts, roots, strict=True)]
        segments += [
            _Segment(start, length, root_starts[root], roots[root])
            for start, length, root in zip(branch_starts, branches, branch_roots, strict=True)
        ]
        self.segments = segments
        self.device = device
        self.count, self.branch_roots = len(roots), branch_roots

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, scores: Scores | None = None) -> Tensor:
        if scores is not None:
            return self.padded(q_THD, k_TKD, v_TKD, scores)
        sizes = q_THD.shape[1], k_TKD.shape[1], q_THD.shape[2]
        attend = self.varlen_call if has_varlen(q_THD.device, find_dtype(q_THD), *sizes) else self.padded
        return attend(q_THD, k_TKD, v_TKD)

    def recur(self, layer: int, advance: Advance, *inputs: Tensor) -> Tensor:
        """Feed every root to a layer with states, then every branch from the state at the end of its root."""
        roots, branches = self.recurrences
        outputs_T, ends = roots(advance, inputs, None)
        if branches is None:
            return outputs_T
        root_of_branch = torch.tensor(self.branch_roots, device=self.device)
        start = State(*(x[root_of_branch] for x in ends))
        return torch.cat([outputs_T, branches(advance, inputs, start)[0]])

    @cached_property
    def recurrences(self) -> tuple[Recurrence, Recurrence | None]:
        roots, branches = (
            Recurrence([s.start for s in part], [s.length for s in part], self.device) if part else None
            for part in (self.segments[: self.count], self.segments[self.count :])
        )
        assert roots is not None
        return roots, branches

    @cached_property
    def varlen_call(self) -> VarlenCall:
        """Attends for all segments as they lie on T. Each branch repeats the keys of its root."""
        places_Y = torch.cat([segment.list_keys() for segment in self.segments]).to(self.device)
        return VarlenCall.make([s.length for s in self.segments], [s.keys for s in self.segments], places_Y)

    @cached_property
    def padded(self) -> _PaddedAttention:
        return _PaddedAttention(self.segments, self.device)


class _PaddedAttention:
    """Attends for segments of similar sizes, padded to a bucket together."""

    def __init__(self, segments: Sequence[_Segment], device: torch.device):
        self.buckets = [_PaddedBucket(part, device) for part in _bucket_segments(segments)]
        # The queries, and the keys, of all buckets are gathered from T at once, one padded segment after the other.
        self.queries = torch.cat([bucket.query_NL.flatten() for bucket in self.buckets])
        self.keys = torch.cat([bucket.key_NS.flatten() for bucket in self.buckets])
        self.query_counts = [bucket.query_NL.numel() for bucket in self.buckets]
        self.key_counts = [bucket.key_NS.numel() for bucket in self.buckets]
        # Token t of T is entry place_T[t] of these padded queries.
        place = torch.cat([bucket.inside_NL.flatten() for bucket in self.buckets]).nonzero().squeeze(1)
        self.place_T = torch.empty_like(place)
        self.place_T[self.queries[place]] = place

    def __call__(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, scores: Scores | None = None) -> Tensor:
        queries = q_THD.index_select(0, self.queries).split(self.query_counts)
        keys, values = (x.index_select(0, self.keys).split(self.key_counts) for x in (k_TKD, v_TKD))
        padded = [
            bucket.attend(q, k, v, scores).flatten(0, 1)
            for bucket, q, k, v in zip(self.buckets, queries, keys, values, strict=True)
        ]
        return torch.cat(padded).index_select(0, self.place_T)


class _Segment(NamedTuple):
    """Holds where `length` tokens lie on T, and the root that they continue (of length 0 for a root itself)."""

    start: int
    length: int
    root_start: int
    root_length: int

    @property
    def keys(self) -> int:
        return self.root_length + self.length

    def list_keys(self) -> Tensor:
        """Return where the keys lie on T: the tokens of the row, its root's before its own."""
        root = torch.arange(self.root_start, self.root_start + self.root_length)
        return torch.cat([root, torch.arange(self.start, self.start + self.length)])


def _offsets(lengths: Sequence[int]) -> list[int]:
    return [0, *accumulate(lengths)][:-1]


def _bucket_segments(segments: Sequence[_Segment]) -> list[list[_Segment]]:
    """Cut the segments into buckets so that few query-key products are padding.

    Their number is at most (1 + `PADDING`) times the exact one, and `BUCKET_PRODUCTS` for every bucket.
    """

    def size(segment: _Segment) -> tuple[int, int, int]:
        # Roots of lengths within a factor of 2 ** (1 / 4), about 19 %, come together, then the longest branches first.
        octave = round(4 * math.log2(segment.root_length)) if segment.root_length else -1
        return octave, segment.length, segment.root_length

    buckets: list[list[_Segment]] = []
    exact = longest = keys = 0  # of the last bucket: its exact products, and what it is padded to
    for segment in sorted(segments, key=size, reverse=True):
        products = segment.length * segment.keys
        if buckets and bool(segment.root_length) == bool(buckets[-1][0].root_length):
            wider, taller = max(keys, segment.keys), max(longest, segment.length)
            padded = (len(buckets[-1]) + 1) * taller * wider
            if padded <= (1 + PADDING) * (exact + products) + BUCKET_PRODUCTS:
                buckets[-1].append(segment)
                exact, longest, keys = exact + products, taller, wider
                continue
        buckets.append([segment])
        exact, longest, keys = products, segment.length, segment.keys
    return buckets


class _PaddedBucket:
    """Attends for N segments that are padded on the right to L queries and S keys, all roots or all branches.

    `query_NL` and `key_NS` are the places on T of the queries and keys, and place 0 where they are padding;
    `inside_NL` tells the queries that are not.
    """

    def __init__(self, segments: Sequence[_Segment], device: torch.device):
        fields = torch.tensor(segments, device=device, dtype=torch.long)
        start_N1, length_N1, root_start_N1, root_length_N1 = fields[:, :, None].unbind(1)
        keys_N1 = root_length_N1 + length_N1
        query_L = torch.arange(int(length_N1.max()), device=device)
        key_S = torch.arange(int(keys_N1.max()), device=device)
        self.inside_NL = query_L < length_N1
        self.query_NL = torch.where(self.inside_NL, start_N1 + query_L, 0)
        # The keys are the tokens of the row: first its root's, then the branch's own.
        key_NS = torch.where(key_S < root_length_N1, root_start_N1 + key_S, start_N1 - root_length_N1 + key_S)
        self.key_NS = torch.where(key_S < keys_N1, key_NS, 0)
        # The last key that a query sees: itself. Query l is token root_length + l of its row. A query that is padding
        # stands where the last one does: behind a window that hides all keys, it would be NaN.
        self.last_NL = torch.minimum(root_length_N1 + query_L, keys_N1 - 1)
        self.causal = not segments[0].root_length
        self.bias_N1LS: Tensor | None = None

    def make_bias(self, dtype: torch.dtype) -> Tensor:
        """Return what is added to the scores, [N, 1, L, S]; all layers share it."""
        if self.bias_N1LS is None or self.bias_N1LS.dtype != dtype:
            # A query sees the keys up to itself, so a query that is not padding never sees padding.
            hidden_N1LS = self.measure_distances()[:, None] < 0
            zeros_N1LS = torch.zeros(hidden_N1LS.shape, device=hidden_N1LS.device, dtype=dtype)
            self.bias_N1LS = zeros_N1LS.masked_fill_(hidden_N1LS, -math.inf)
        return self.bias_N1LS

    def measure_distances(self) -> Tensor:
        """Return how far before a query of its row each key stands, [N, L, S]."""
        return self.last_NL[:, :, None] - torch.arange(self.key_NS.shape[1], device=self.key_NS.device)

    @cached_property
    def distance_NLS(self) -> Tensor:
        """Holds `measure_distances` for all layers that have scores."""
        return self.measure_distances()

    def attend(self, q_XHD: Tensor, k_YKD: Tensor, v_YKD: Tensor, scores: Scores | None = None) -> Tensor:
        """Return the attended values, [N, L, H, D]; X lists the N x L padded queries, Y the N x S padded keys."""
        count = len(self.query_NL)
        # A view [N, L, heads, D] or [N, S, heads, D] becomes [N, heads, L or S, D].
        q_NHLD, k_NKSD, v_NKSD = (x.unflatten(0, (count, -1)).transpose(1, 2) for x in (q_XHD, k_YKD, v_YKD))
        if scores is not None:
            return attend_by_scores(scores, q_NHLD, k_NKSD, v_NKSD, self.distance_NLS).transpose(1, 2)
        if q_XHD.dtype == torch.bfloat16 and q_XHD.device.type == "cpu":
            return ProductAttention.apply(q_NHLD, k_NKSD, v_NKSD, self.last_NL[:, None]).transpose(1, 2)
        grouped, mask_N1LS = q_NHLD.shape[1] != k_NKSD.shape[1], None if self.causal else self.make_bias(q_XHD.dtype)
        return F.scaled_dot_product_attention(
            q_NHLD, k_NKSD, v_NKSD, attn_mask=mask_N1LS, is_causal=self.causal, enable_gqa=grouped
        ).transpose(1, 2)
