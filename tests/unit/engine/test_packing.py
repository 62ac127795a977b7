"""Packing changes nothing but the cost: trees of shared prefixes have the log-probs and gradients of separate rows."""

from __future__ import annotations

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.engine import weights
from core.engine.packing import grow_trees, pack_rows
from core.types import Row
from tests.unit.engine.conftest import gradients


def make_rows(seed: int, groups: int = 4, members: int = 5) -> list[Row]:
    """Groups with a shared prompt start, masks with gaps, uneven lengths, some identical prompts."""
    rng = random.Random(seed)
    rows = []
    for group in range(groups):
        shared = [rng.randrange(96) for _ in range(rng.choice([2, 20, 30]))]
        for member in range(members):
            own = [rng.randrange(96) for _ in range(rng.choice([0, 0, 3, 9]))]
            response = [rng.randrange(96) for _ in range(rng.randint(1, 7))]
            mask = tuple(rng.choice([0, 1]) for _ in response)
            advantage = rng.choice([-1.0, 0.0, 0.7])
            tokens = (*shared, *own, *response)
            rows.append(Row(tokens, mask, (-4.5,) * len(mask), advantage, group * members + member))
    rng.shuffle(rows)
    return rows


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(8, 300))
def test_every_row_is_packed_once_within_the_budget(seed, budget):
    rows = make_rows(seed)
    packs = pack_rows(rows, budget, torch.device("cpu"))
    assert sorted(i for pack in packs for i in pack.row_indices) == list(range(len(rows)))
    for pack in packs:
        assert len(pack.ids_T) <= budget or len(pack.row_indices) == 1
        expected = [
            t
            for i in pack.row_indices
            for t, m in zip(rows[i].tokens[-len(rows[i].loss_mask) :], rows[i].loss_mask, strict=True)
            if m
        ]
        assert pack.targets_R.tolist() == expected


def test_groups_become_trees():
    rows = make_rows(0)
    trees = grow_trees(rows, 4096)
    assert len(trees) < len(rows)
    assert sum(tree.length for tree in trees) < sum(len(row.tokens) for row in rows)


def test_tree_gradients_equal_those_of_separate_rows(qwen2):
    rows = make_rows(3)
    whole, single = (gradients(qwen2, rows, max_tokens=max_tokens) for max_tokens in (4096, 1))
    for name, gradient in whole.items():
        torch.testing.assert_close(gradient, single[name], atol=1e-6, rtol=1e-4)


def test_what_predicts_nothing_is_left_out_and_a_branch_may_be_empty():
    prompt = tuple(range(20))
    rows = [
        Row((*prompt, 30), (1,), (-1.0,), 1.0, 0),
        Row((*prompt, 40, 41, 42), (1, 1, 0), (-1.0,) * 3, 1.0, 1),
    ]
    (pack,) = pack_rows(rows, 64, torch.device("cpu"))
    assert pack.ids_T.tolist() == [*prompt, 40]
    assert pack.predict_R.tolist() == [19, 19, 20]
    assert pack.targets_R.tolist() == [30, 40, 41]


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10_000), st.sampled_from([1, 60, 300, 4096]))
def test_packed_tokens_have_the_hidden_states_of_their_own_rows(qwen2, seed, budget):
    """And asking for the predicting positions alone gives what a whole forward has there."""
    rows = make_rows(seed, groups=3, members=4)
    model = weights.load(qwen2, device="cpu")
    with torch.no_grad():
        for pack in pack_rows(rows, budget, torch.device("cpu")):
            kept = model(pack.ids_T, pack.positions_T, pack.attend, pack.predict_R)
            whole = model(pack.ids_T, pack.positions_T, pack.attend)
            torch.testing.assert_close(kept, whole[pack.predict_R], atol=1e-5, rtol=0)
            alone = torch.cat([predicting_states(model, rows[i]) for i in pack.row_indices])
            torch.testing.assert_close(kept, alone, atol=1e-5, rtol=0)
            expected_rows = [n for n, i in enumerate(pack.row_indices) for m in rows[i].loss_mask if m]
            assert pack.row_R.tolist() == expected_rows


def predicting_states(model, row):  # type: ignore[no-untyped-def]
    """Hidden states before each trained token, from a forward of the row alone under plain causal attention."""

    def attend(layer, q_THD, k_TKD, v_TKD):  # type: ignore[no-untyped-def]
        q, k, v = (x.transpose(0, 1)[None] for x in (q_THD, k_TKD, v_TKD))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1)

    states = model(torch.tensor(row.tokens), torch.arange(len(row.tokens)), attend)
    prompt = len(row.tokens) - len(row.loss_mask)
    return states[[prompt + i - 1 for i, trained in enumerate(row.loss_mask) if trained]]
