"""Averages the losses of tokens into the loss of a batch; `loss_agg` says what weighs the same in the average.

Each choice cuts the rows of a batch into parts of equal weight; the trained tokens of a part share its weight evenly:

- rollout: all rows of a rollout are one part. slime 0.3 (`rollout_mask_sums` and `global_batch_size`).
- rollout_turn: each row is a part, and the rows of a rollout share that rollout's weight. AgentFlow's paper (eq. 5).
- turn: each row is a part, so a rollout with more rows weighs more. slime 0.2.2 and the slime-agentic seed.
- token: the batch is one part. slime's `--calculate-per-token-loss`. DAPO's equation 8 makes each group a part; its
  released code (verl) takes the batch, as here.
- constant: each rollout's sum is divided by one length for all, not by its own tokens: Dr. GRPO's code (listing 1),
  verl's `seq-mean-token-sum-norm`. slime divides by a constant too, one of its own, in examples/DrGRPO.

Parts without a trained token do not count (slime counts them, which shrinks the loss of the others).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Protocol

from core.types import LossAgg


class WeighedRow(Protocol):
    """Names what the average needs of a row."""

    @property
    def rollout_id(self) -> Hashable: ...
    @property
    def trained_tokens(self) -> int: ...


def row_scales(rows: Sequence[WeighedRow], loss_agg: LossAgg, length: int = 1) -> list[float]:
    """Return a factor s_i for each row: the loss of the batch is sum over rows i of s_i * sum_t(mask * loss).

    `rows` must be all rows of one optimizer step; the factors then hold for any split of them into micro-batches.
    `length` is what `constant` divides by.
    """
    trained = [row for row in rows if row.trained_tokens]
    tokens = Counter[Hashable]()  # trained tokens of each rollout, by rollout_id
    turns = Counter[Hashable]()  # rows of each rollout that have a trained token
    for row in trained:
        tokens[row.rollout_id] += row.trained_tokens
        turns[row.rollout_id] += 1

    def scale(row: WeighedRow) -> float:
        match loss_agg:
            case "rollout":
                return 1 / (len(turns) * tokens[row.rollout_id])
            case "rollout_turn":
                return 1 / (len(turns) * turns[row.rollout_id] * row.trained_tokens)
            case "turn":
                return 1 / (len(trained) * row.trained_tokens)
            case "token":
                return 1 / tokens.total()
            case "constant":
                return 1 / (len(turns) * length)

    return [scale(row) if row.trained_tokens else 0.0 for row in rows]
