"""Row scales: each unit's parts weigh the same, and how a rollout is cut into rows does not matter to `rollout`."""

from __future__ import annotations

from collections import defaultdict
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.algorithms.aggregate import row_scales
from core.types import LossAgg, Row


def make_row(rollout_id: int, mask: list[int]) -> Row:
    return Row((7,) * (len(mask) + 2), tuple(mask), (-1.0,) * len(mask), advantage=0.0, rollout_id=rollout_id)


rows = st.builds(make_row, st.integers(0, 4), st.lists(st.integers(0, 1), max_size=6))
batches = st.lists(rows, max_size=10)


def weights(batch: list[Row], unit: LossAgg) -> list[float]:
    """Total weight of each row's tokens in the loss of the batch."""
    return [scale * row.trained_tokens for scale, row in zip(row_scales(batch, unit), batch, strict=True)]


@pytest.mark.parametrize("unit", [unit for unit in get_args(LossAgg) if unit != "constant"])
@given(batch=batches)
def test_weights_add_up_to_one_and_empty_rows_weigh_nothing(unit: LossAgg, batch: list[Row]) -> None:
    scales = row_scales(batch, unit)
    assert all((scale > 0) == (row.trained_tokens > 0) for scale, row in zip(scales, batch, strict=True))
    assert sum(weights(batch, unit)) == pytest.approx(1 if any(row.trained_tokens for row in batch) else 0)


@given(batches)
def test_each_part_weighs_the_same(batch: list[Row]) -> None:
    per_rollout: defaultdict[int, float] = defaultdict(float)
    for row, weight in zip(batch, weights(batch, "rollout"), strict=True):
        per_rollout[row.rollout_id] += weight
    trained_rollouts = {row.rollout_id for row in batch if row.trained_tokens}
    count = len(trained_rollouts)
    assert [per_rollout[r] for r in trained_rollouts] == pytest.approx([1 / max(count, 1)] * count)

    within: defaultdict[int, set[float]] = defaultdict(set)
    for row, weight in zip(batch, weights(batch, "rollout_turn"), strict=True):
        if weight:
            within[row.rollout_id].add(round(weight, 12))
            per_rollout[row.rollout_id] -= weight
    assert all(len(weights_of_turns) == 1 for weights_of_turns in within.values())
    assert list(per_rollout.values()) == pytest.approx([0.0] * len(per_rollout))

    trained_rows = [w for w in weights(batch, "turn") if w]
    assert trained_rows == pytest.approx([1 / max(len(trained_rows), 1)] * len(trained_rows))

    assert len({scale for scale in row_scales(batch, "token") if scale}) <= 1


@given(batches, st.data())
def test_cutting_a_rollout_into_more_rows_keeps_the_scale_of_its_tokens(batch: list[Row], data: st.DataObject) -> None:
    cuts = [data.draw(st.integers(0, len(row.loss_mask))) for row in batch]
    pieces = [
        make_row(row.rollout_id, list(part))
        for row, cut in zip(batch, cuts, strict=True)
        for part in (row.loss_mask[:cut], row.loss_mask[cut:])
    ]
    for unit in ("rollout", "token"):
        whole, cut_scales = row_scales(batch, unit), row_scales(pieces, unit)
        for index, piece in enumerate(pieces):
            if piece.trained_tokens:
                assert cut_scales[index] == pytest.approx(whole[index // 2])


def test_a_constant_divides_each_rollouts_sum_however_many_rows_it_has() -> None:
    batch = [make_row(0, [1, 1]), make_row(0, [1, 0, 1]), make_row(1, [1]), make_row(2, [0])]
    assert row_scales(batch, "constant", 10) == [1 / 20, 1 / 20, 1 / 20, 0]
