"""Packs rows for training: one after the other without padding, and a prompt that several rows share only once.

Rows that begin alike form a tree: a root (the shared prefix), then one branch per row; a lone row is a root. Every
token attends exactly as it would in its own row, so losses and gradients are those of the separate rows. The tokens
after the last position that predicts a trained token are not packed: nothing depends on them.

Tensor suffixes (core/engine/__init__.py): T lists the tokens of all roots first, then those of all branches; N counts
the segments of one kind, roots or branches; R are the trained response tokens, row after row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from core.types import Row

MIN_SHARED = 16
"""Sets the shortest common prefix, in tokens, that is worth a tree."""


@dataclass(frozen=True)
class Tree:
    """Names the rows (by index) that share their first `root` tokens; a lone row is all root.

    `length` is the number of tokens in the pack: the root once, and every branch.
    """

    rows: tuple[int, ...]
    root: int
    length: int


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


def pack_rows(rows: Sequence[Row], max_tokens: int, device: torch.device) -> list[Pack]:
    """Split `rows` into packs of at most `max_tokens` tokens (one longer row makes a pack of its own).

    Trees with roots of similar length come together, since attention pads within a pack.
    """
    packs: list[list[Tree]] = []
    free = 0  # tokens that still fit into the last pack
    for tree in sorted(grow_trees(rows, max_tokens), key=lambda tree: (-tree.root, tree.rows)):
        if not packs or tree.length > free:
            packs.append([])
            free = max_tokens
        packs[-1].append(tree)
        free -= tree.length
    return [_pack(rows, trees, device) for trees in packs]


def grow_trees(rows: Sequence[Row], max_tokens: int) -> list[Tree]:
    """Put every row into one tree: neighbours in lexical order join while they share enough of their prompts."""
    trees: list[Tree] = []
    for index in sorted(range(len(rows)), key=lambda i: (rows[i].tokens, i)):
        row = rows[index]
        length = _needed_length(row)
        if trees:
            last = trees[-1]
            first = rows[last.rows[0]]
            shared = len(last.rows) > 1
            # Only prompts are shared: a root never reaches into a response.
            limit = min(last.root if shared else _prompt_length(first), _prompt_length(row))
            root = _common_prefix(first.tokens, row.tokens, limit)
            # The tree with this row: n + 1 rows, of which n no longer repeat the root.
            joined_length = sum(_needed_length(rows[i]) for i in last.rows) + length - len(last.rows) * root
            # What a shorter root loses, every branch repeats; so a row joins only if at least half of the root stays.
            if root >= max(MIN_SHARED, last.root // 2 if shared else 0) and joined_length <= max_tokens:
                trees[-1] = Tree((*last.rows, index), root, joined_length)
                continue
        trees.append(Tree((index,), length, length))
    return trees


def _prompt_length(row: Row) -> int:
    return len(row.tokens) - len(row.loss_mask)


def _needed_length(row: Row) -> int:
    """Count the tokens up to the last one that predicts a trained one (the whole prompt when nothing is trained)."""
    # The token at response offset o stands at prompt length + o; the token before it, which predicts it, ends the row.
    last = max((offset for offset, trained in enumerate(row.loss_mask) if trained), default=0)
    return _prompt_length(row) + last


def _common_prefix(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    if a[:limit] == b[:limit]:
        return limit
    return next(i for i in range(limit) if a[i] != b[i])


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

    Branch i belongs to root number `branch_roots[i]`. Only attention pads, on the right: roots to the longest root,
    branches to the longest branch.
    """

    def __init__(
        self, roots: Sequence[int], branches: Sequence[int], branch_roots: Sequence[int], device: torch.device
    ):
        self.roots = _Segments(roots, device)
        self.branches = _Segments(branches, device)
        if branches:
            # N counts branches here: root_N[n] is the root of branch n.
            self.root_N = torch.tensor(branch_roots, device=device)
            self.shared = max(roots[i] for i in branch_roots)
            # The keys of a branch are S = shared + longest: its root, padded to `shared`, then the branch itself.
            root_mask_NS = self.roots.inside_NL[self.root_N, : self.shared]
            longest = self.branches.longest
            causal_LL = torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
            masks_NLS = (root_mask_NS[:, None].expand(-1, longest, -1), causal_LL.expand(len(branches), -1, -1))
            self.mask_N1LS = torch.cat(masks_NLS, dim=2)[:, None]

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        size = self.roots.tokens  # T up to here are roots, from here on branches
        root_q, root_k, root_v = (self.roots.pad(x[:size]) for x in (q_THD, k_TKD, v_TKD))
        out_THD = self.roots.unpad(_attend(root_q, root_k, root_v, None))
        if not self.branches.tokens:
            return out_THD
        q, own_k, own_v = (self.branches.pad(x[size:]) for x in (q_THD, k_TKD, v_TKD))
        shared_k, shared_v = (x[:, : self.shared].index_select(0, self.root_N) for x in (root_k, root_v))
        k, v = torch.cat((shared_k, own_k), dim=1), torch.cat((shared_v, own_v), dim=1)
        branch_out = self.branches.unpad(_attend(q, k, v, self.mask_N1LS))
        return torch.cat((out_THD, branch_out))


def _attend(q_NLHD: Tensor, k_NSKD: Tensor, v_NSKD: Tensor, mask_N1LS: Tensor | None) -> Tensor:
    q_NHLD, k_NKSD, v_NKSD = (x.transpose(1, 2) for x in (q_NLHD, k_NSKD, v_NSKD))
    grouped = q_NHLD.shape[1] != k_NKSD.shape[1]
    return F.scaled_dot_product_attention(
        q_NHLD, k_NKSD, v_NKSD, attn_mask=mask_N1LS, is_causal=mask_N1LS is None, enable_gqa=grouped
    ).transpose(1, 2)


class _Segments:
    """Pads packed segments to a batch [N, L], and unpads it. T holds these segments only."""

    def __init__(self, lengths: Sequence[int], device: torch.device):
        self.count = len(lengths)
        self.tokens = sum(lengths)
        self.longest = max(lengths, default=0)
        self.uniform = self.tokens == self.count * self.longest
        lengths_N = torch.tensor(lengths, device=device)
        self.inside_NL = torch.arange(self.longest, device=device) < lengths_N[:, None]
        # Token t of T is entry index_T[t] of the padded batch, flattened to N * L.
        self.index_T = self.inside_NL.flatten().nonzero().squeeze(1)

    def pad(self, x_T: Tensor) -> Tensor:
        if not self.uniform:
            x_T = x_T.new_zeros(self.count * self.longest, *x_T.shape[1:]).index_copy(0, self.index_T, x_T)
        return x_T.view(self.count, self.longest, *x_T.shape[1:])

    def unpad(self, x_NL: Tensor) -> Tensor:
        x_T = x_NL.flatten(0, 1)
        return x_T if self.uniform else x_T.index_select(0, self.index_T)
