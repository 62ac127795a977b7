"""Rows into packs: rows one after the other without padding, and a prompt shared by several rows only once.

Rows that begin alike form a tree: a root (the shared prefix), then one branch for each row; a lone row is a root. Every
token attends exactly as it would in its own row, so losses and gradients are those of the separate rows. What follows
the last position that predicts a trained token is left out: nothing depends on it.

Tensor suffixes: T all tokens of a pack, first those of all roots, then those of all branches; R its trained response
tokens; N segments (roots or branches), L their longest; H, K, D as in core.engine.model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from core.types import Row

MIN_SHARED = 16
"""A shorter common prefix is not worth a tree."""


@dataclass(frozen=True)
class Tree:
    """Rows (by index) that share their first `root` tokens; a lone row is all root. `length` counts all its tokens."""

    rows: tuple[int, ...]
    root: int
    length: int


@dataclass(frozen=True)
class Pack:
    """The tensors of one forward. `predict_R` points at the token before each trained one, whose logits predict it."""

    row_indices: tuple[int, ...]
    ids_T: Tensor
    positions_T: Tensor
    attend: PackedAttention
    predict_R: Tensor
    targets_R: Tensor
    row_R: Tensor

    def spread(self, values: Sequence[float]) -> Tensor:
        """One float32 for each trained token, from one for each row of the batch, [R]."""
        per_row = torch.tensor([values[i] for i in self.row_indices], device=self.ids_T.device, dtype=torch.float32)
        return per_row[self.row_R]

    def gather(self, values: Sequence[Sequence[float]], masks: Sequence[Sequence[int]]) -> Tensor:
        """The trained entries of one float sequence for each row of the batch, [R]."""
        flat = [v for i in self.row_indices for v, m in zip(values[i], masks[i], strict=True) if m]
        return torch.tensor(flat, device=self.ids_T.device, dtype=torch.float32)


def pack_rows(rows: Sequence[Row], max_tokens: int, device: torch.device) -> list[Pack]:
    """Split `rows` into packs of at most `max_tokens` tokens (one longer row makes a pack of its own).

    Trees with roots of like length come together, since attention pads within a pack.
    """
    packs: list[list[Tree]] = []
    room = 0
    for tree in sorted(grow_trees(rows, max_tokens), key=lambda tree: (-tree.root, tree.rows)):
        if not packs or tree.length > room:
            packs.append([])
            room = max_tokens
        packs[-1].append(tree)
        room -= tree.length
    return [_pack(rows, trees, device) for trees in packs]


def grow_trees(rows: Sequence[Row], max_tokens: int) -> list[Tree]:
    """Every row in one tree: neighbours in lexical order join while they share enough of their prompts."""
    trees: list[Tree] = []
    for index in sorted(range(len(rows)), key=lambda i: (rows[i].tokens, i)):
        row = rows[index]
        length = _needed(row)
        if trees:
            last = trees[-1]
            first = rows[last.rows[0]]
            joined = len(last.rows) > 1
            most = min(last.root if joined else _prompt_length(first), _prompt_length(row))
            root = _common_prefix(first.tokens, row.tokens, most)
            tokens = sum(_needed(rows[i]) for i in last.rows) + length - len(last.rows) * root
            # A prefix that shrinks would be repeated in every branch; half of it is the least worth joining for.
            if root >= max(MIN_SHARED, last.root // 2 if joined else 0) and tokens <= max_tokens:
                trees[-1] = Tree((*last.rows, index), root, tokens)
                continue
        trees.append(Tree((index,), length, length))
    return trees


def _prompt_length(row: Row) -> int:
    return len(row.tokens) - len(row.loss_mask)


def _needed(row: Row) -> int:
    """Number of tokens up to the last one that predicts a trained one (the whole prompt when nothing is trained)."""
    last = max((offset for offset, trained in enumerate(row.loss_mask) if trained), default=0)
    return _prompt_length(row) + last


def _common_prefix(a: Sequence[int], b: Sequence[int], most: int) -> int:
    if a[:most] == b[:most]:
        return most
    return next(i for i in range(most) if a[i] != b[i])


def _pack(rows: Sequence[Row], trees: Sequence[Tree], device: torch.device) -> Pack:
    ids: list[int] = []
    positions: list[int] = []
    predict: list[int] = []
    targets: list[int] = []
    row_of: list[int] = []
    order: list[int] = []
    starts: list[int] = []
    branches: list[int] = []
    root_of: list[int] = []
    for tree in trees:
        starts.append(len(ids))
        ids += rows[tree.rows[0]].tokens[: tree.root]
        positions += range(tree.root)
    for number, tree in enumerate(trees):
        for index in tree.rows:
            row, start, needed = rows[index], len(ids) - tree.root, _needed(rows[index])
            if needed > tree.root:
                ids += row.tokens[tree.root : needed]
                positions += range(tree.root, needed)
                branches.append(needed - tree.root)
                root_of.append(number)
            for token, trained in enumerate(row.loss_mask, start=_prompt_length(row)):
                if trained:
                    predict.append((starts[number] if token <= tree.root else start) + token - 1)
                    targets.append(row.tokens[token])
                    row_of.append(len(order))
            order.append(index)

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, device=device, dtype=torch.long)

    return Pack(
        row_indices=tuple(order),
        ids_T=tensor(ids),
        positions_T=tensor(positions),
        attend=PackedAttention([tree.root for tree in trees], branches, root_of, device),
        predict_R=tensor(predict),
        targets_R=tensor(targets),
        row_R=tensor(row_of),
    )


class PackedAttention:
    """Every root attends causally to itself, every branch to its root (number `root_of[i]`) and causally to itself.

    Only attention pads, on the right: roots to the longest root, branches to the longest branch.
    """

    def __init__(self, roots: Sequence[int], branches: Sequence[int], root_of: Sequence[int], device: torch.device):
        self.roots, self.branches = _Segments(roots, device), _Segments(branches, device)
        if branches:
            self.root_N = torch.tensor(root_of, device=device)
            self.shared = max(roots[i] for i in root_of)
            of_root_NS = self.roots.inside_NL[self.root_N, : self.shared]
            longest = self.branches.longest
            own_LL = torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
            seen = (of_root_NS[:, None].expand(-1, longest, -1), own_LL.expand(len(branches), -1, -1))
            self.mask = torch.cat(seen, dim=2)[:, None]

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        size = self.roots.tokens
        q, k, v = (self.roots.pad(x[:size]) for x in (q_THD, k_TKD, v_TKD))
        out_THD = self.roots.unpad(_attend(q, k, v, None))
        if not self.branches.tokens:
            return out_THD
        q, own_k, own_v = (self.branches.pad(x[size:]) for x in (q_THD, k_TKD, v_TKD))
        k, v = (x[:, : self.shared].index_select(0, self.root_N) for x in (k, v))
        branch_out = _attend(q, torch.cat((k, own_k), dim=1), torch.cat((v, own_v), dim=1), self.mask)
        return torch.cat((out_THD, self.branches.unpad(branch_out)))


def _attend(q_NLHD: Tensor, k_NSKD: Tensor, v_NSKD: Tensor, mask: Tensor | None) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q_NLHD, k_NSKD, v_NSKD))
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
    ).transpose(1, 2)


class _Segments:
    """Packed segments to a padded batch and back."""

    def __init__(self, lengths: Sequence[int], device: torch.device):
        self.count, self.tokens, self.longest = len(lengths), sum(lengths), max(lengths, default=0)
        self.uniform = self.tokens == self.count * self.longest
        ends_N = torch.tensor(lengths, device=device)
        self.inside_NL = torch.arange(self.longest, device=device) < ends_N[:, None]
        self.index_T = self.inside_NL.flatten().nonzero().squeeze(1)

    def pad(self, x_T: Tensor) -> Tensor:
        if not self.uniform:
            x_T = x_T.new_zeros(self.count * self.longest, *x_T.shape[1:]).index_copy(0, self.index_T, x_T)
        return x_T.view(self.count, self.longest, *x_T.shape[1:])

    def unpad(self, x_NL: Tensor) -> Tensor:
        x_T = x_NL.flatten(0, 1)
        return x_T if self.uniform else x_T.index_select(0, self.index_T)
