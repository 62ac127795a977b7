"""Rows into packs: rows one after the other without padding, and a prompt shared by several rows only once.

Rows that begin alike form a tree: the shared prefix, then one branch for each row. Every row's tokens attend exactly as
they would alone, so losses and gradients are those of the separate rows.

Tensor suffixes: T all tokens of a pack, R its trained response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from core.types import Row

MIN_SHARED = 16
"""A shorter common prefix is not worth a tree."""
MAX_TREE = 2048
"""Tokens of one tree; the attention mask grows with its square."""


@dataclass(frozen=True)
class Tree:
    """Rows (by index) that share their first `shared` tokens."""

    rows: tuple[int, ...]
    shared: int
    length: int


@dataclass(frozen=True)
class Pack:
    """The tensors of one forward. `predict_R` points at the token before each trained one, whose logits predict it."""

    row_indices: tuple[int, ...]
    lengths: tuple[int, ...]
    """Tokens of each tree."""
    ids_T: Tensor
    positions_T: Tensor
    branch_T: Tensor | None
    """Which branch of its tree a token is in, 0 for the shared prefix; None when no tree has branches."""
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
    """Split `rows` into packs of at most `max_tokens` tokens (one longer tree makes a pack of its own).

    Trees of like length come together, since attention pads within a pack.
    """
    packs: list[list[Tree]] = []
    room = 0
    for tree in sorted(grow_trees(rows, max_tokens), key=lambda tree: (-tree.length, tree.rows)):
        if not packs or tree.length > room:
            packs.append([])
            room = max_tokens
        packs[-1].append(tree)
        room -= tree.length
    return [_pack(rows, trees, device) for trees in packs]


def grow_trees(rows: Sequence[Row], max_tokens: int) -> list[Tree]:
    """Every row in one tree: neighbours in lexical order join while they share enough of their prompts."""
    limit = min(max_tokens, MAX_TREE)
    trees: list[Tree] = []
    for index in sorted(range(len(rows)), key=lambda i: (rows[i].tokens, i)):
        row = rows[index]
        length = len(row.tokens)
        if trees:
            last = trees[-1]
            first = rows[last.rows[0]]
            most = min(last.shared if len(last.rows) > 1 else _prompt_length(first), _prompt_length(row))
            shared = _common_prefix(first.tokens, row.tokens, most)
            tokens = sum(len(rows[i].tokens) for i in last.rows) + length - len(last.rows) * shared
            # A prefix that shrinks would be repeated in every branch; half of it is the least worth joining for.
            if shared >= max(MIN_SHARED, (last.shared if len(last.rows) > 1 else 0) // 2) and tokens <= limit:
                trees[-1] = Tree((*last.rows, index), shared, tokens)
                continue
        trees.append(Tree((index,), 0, length))
    return trees


def _prompt_length(row: Row) -> int:
    return len(row.tokens) - len(row.loss_mask)


def _common_prefix(a: Sequence[int], b: Sequence[int], most: int) -> int:
    if a[:most] == b[:most]:
        return most
    return next(i for i in range(most) if a[i] != b[i])


def _pack(rows: Sequence[Row], trees: Sequence[Tree], device: torch.device) -> Pack:
    ids: list[int] = []
    positions: list[int] = []
    branches: list[int] = []
    predict: list[int] = []
    targets: list[int] = []
    row_of: list[int] = []
    order: list[int] = []
    for tree in trees:
        base = len(ids)
        ids += rows[tree.rows[0]].tokens[: tree.shared]
        positions += range(tree.shared)
        branches += [0] * tree.shared
        for branch, index in enumerate(tree.rows, start=1):
            row, start = rows[index], len(ids)
            ids += row.tokens[tree.shared :]
            positions += range(tree.shared, len(row.tokens))
            branches += [branch] * (len(row.tokens) - tree.shared)
            first = _prompt_length(row)
            for offset, trained in enumerate(row.loss_mask):
                if trained:
                    before = first + offset - 1
                    predict.append(base + before if before < tree.shared else start + before - tree.shared)
                    targets.append(row.tokens[before + 1])
                    row_of.append(len(order))
            order.append(index)

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, device=device, dtype=torch.long)

    return Pack(
        row_indices=tuple(order),
        lengths=tuple(tree.length for tree in trees),
        ids_T=tensor(ids),
        positions_T=tensor(positions),
        branch_T=tensor(branches) if any(len(tree.rows) > 1 for tree in trees) else None,
        predict_R=tensor(predict),
        targets_R=tensor(targets),
        row_R=tensor(row_of),
    )
