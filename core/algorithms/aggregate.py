"""From losses of tokens to the loss of a batch: what counts as one unit in the average.

Every unit partitions the rows; every part has the same weight, shared evenly by its trained tokens:

- rollout: all rows of a rollout are one part. slime 0.3 (`rollout_mask_sums` and `global_batch_size`).
- turn: each row is a part, so a rollout with more rows weighs more. slime 0.2.2 and the slime-agentic seed.
- token: the batch is one part. DAPO; slime's `--calculate-per-token-loss`.

Parts without a trained token are not counted (slime counts them, and so shrinks the loss of the others).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

from core.types import Row

LossUnit = Literal["rollout", "turn", "token"]
LOSS_UNITS: tuple[str, ...] = get_args(LossUnit)


def row_scales(rows: Sequence[Row], unit: LossUnit) -> list[float]:
    """Factor of each row's sum over trained tokens; the loss of the batch is sum over rows of factor * sum_t(mask * x).

    Give all rows of one optimizer step: the factors then hold for any split of them into micro-batches.

    Raises:
        ValueError: `unit` is unknown.
    """
    parts = _parts(rows, unit)
    tokens: Counter[int] = Counter()
    for part, row in zip(parts, rows, strict=True):
        tokens[part] += row.trained_tokens
    counted = sum(count > 0 for count in tokens.values())
    return [1 / (tokens[part] * counted) if row.trained_tokens else 0.0 for part, row in zip(parts, rows, strict=True)]


def _parts(rows: Sequence[Row], unit: LossUnit) -> list[int]:
    match unit:
        case "rollout":
            return [row.rollout_id for row in rows]
        case "turn":
            return list(range(len(rows)))
        case "token":
            return [0] * len(rows)
        case _:
            raise ValueError(f"unknown loss unit {unit!r}; known: {', '.join(LOSS_UNITS)}")
