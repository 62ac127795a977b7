"""Packing changes nothing but the cost: trees of shared prefixes have the log-probs and gradients of separate rows."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.grpo import GRPOConfig
from core.train import packing, trainer
from core.train.packing import grow_trees, pack_rows
from core.types import Row
from tests.unit.conftest import gradients, save_model


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


def test_no_group_gives_up_its_prompt_for_the_few_tokens_that_all_prompts_begin_with():
    """As in chats of one system message: first 32 tokens of every prompt, then 30 of the group's own."""
    rows = [
        Row((*range(32), *[group] * 30, member, 1), (1, 1), (-1.0,) * 2, 1.0, group * 12 + member)
        for group in range(32, 40)
        for member in range(1 if group == 32 else 12)
    ]
    trees = grow_trees(rows, 4096)
    # Group 32 is alone with 63 tokens, or lends its first 32 to a tree that would then repeat 30 tokens 12 times.
    assert sorted((len(tree.rows), tree.root, tree.length) for tree in trees) == [(1, 63, 63), *[(12, 62, 74)] * 7]


@pytest.mark.parametrize("name", ["qwen2", "qwen3_5"])
def test_random_batches_have_the_gradients_of_separate_rows(name, tmp_path, monkeypatch, fuzz_cases):
    """Shared prompts, holes in masks, all loss units, packs, buckets and chunks of logits of any size."""
    folder = save_model(name, tmp_path, seed=0)
    for case in range(fuzz_cases // 200):
        rng = random.Random(case)
        rows = [replace(row, rollout_id=row.rollout_id // 2) for row in make_rows(case, members=rng.randint(1, 7))]
        options = {
            "grpo": GRPOConfig(
                kl_loss_coef=rng.choice([0.0, 0.1]),
                entropy_coef=rng.choice([0.0, 0.01]),
                tis=rng.choice([None, (0.5, 2.0)]),
            ),
            "loss_agg": rng.choice(["rollout", "turn", "token"]),
            "temperature": rng.choice([1.0, 0.7]),
        }
        single = gradients(folder, rows, max_tokens=1, **options)
        monkeypatch.setattr(packing, "BUCKET_PRODUCTS", rng.choice([0, 300, 1 << 20]))
        monkeypatch.setattr(trainer, "LOGITS_PER_CHUNK", 96 * rng.choice([1, 5, 1000]))
        packed = gradients(folder, rows, max_tokens=rng.choice([60, 200, 4096]), **options)
        monkeypatch.undo()
        for name, gradient in single.items():
            torch.testing.assert_close(packed[name], gradient, atol=2e-6, rtol=1e-4, msg=f"case {case}, {name}")


def test_few_query_key_products_are_padding():
    """MemAgent's shape: branches of 12 tokens on average, some four times as long, on short and on long roots."""
    rng = random.Random(0)
    rows = []
    for tree in range(24):
        root = [tree, *(rng.randrange(96) for _ in range(22 if tree % 6 == 5 else rng.randint(85, 118)))]
        for member in range(16):
            own = [96 + member, *(rng.randrange(96) for _ in range(rng.randint(0, 8)))]
            response = [rng.randrange(96) for _ in range(1 + min(40, int(rng.expovariate(1 / 6))))]
            ones = (1,) * len(response)
            rows.append(Row((*root, *own, *response), ones, (-1.0,) * len(ones), 1.0, tree * 16 + member))
    exact = padded = 0
    for tree in grow_trees(rows, 4096):
        lengths = [length for i in tree.rows if (length := len(rows[i].tokens) - 1)]
        exact += tree.root**2 + sum((length - tree.root) * length for length in lengths)
    for pack in pack_rows(rows, 4096, torch.device("cpu")):
        padded += sum(bucket.query_NL.numel() * bucket.key_NS.shape[1] for bucket in pack.attend.padded.buckets)
    assert exact < padded <= 1.2 * exact


def test_the_keys_that_branches_repeat_are_bounded():
    prompt = tuple(range(90)) * 5
    rows = [Row((*prompt, i, 1), (1,), (-1.0,), 1.0, i) for i in range(64)]
    for limit in (512, 1024):
        for pack in pack_rows(rows, limit, torch.device("cpu")):
            assert len(pack.attend.padded.keys) <= packing.KEYS_PER_TOKEN * limit


def test_what_predicts_nothing_is_left_out_and_a_branch_may_be_empty():
    prompt = tuple(range(20))
    rows = [Row((*prompt, 30), (1,), (-1.0,), 1.0, 0), Row((*prompt, 40, 41, 42), (1, 1, 0), (-1.0,) * 3, 1.0, 1)]
    (pack,) = pack_rows(rows, 64, torch.device("cpu"))
    assert pack.ids_T.tolist() == [*prompt, 40]
    assert pack.predict_R.tolist() == [19, 19, 20]
    assert pack.targets_R.tolist() == [30, 40, 41]
