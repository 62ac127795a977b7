"""Prefill attention: what it computes, and how little it pads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from core.engine import attention
from core.engine.attention import DecodeAttention, PrefillAttention


def prefill(starts: Sequence[int], lengths: Sequence[int], first_slot: int = 0) -> tuple[torch.Tensor, ...]:
    """Attend with random queries, keys and values; return them, the cache [2, 1, slots, K, S, D] and the result."""
    torch.manual_seed(0)
    heads, kv_heads, head_dim, total = 2, 1, 4, sum(lengths)
    longest = max(start + length for start, length in zip(starts, lengths, strict=True))
    kv = torch.randn(2, 1, first_slot + len(lengths), kv_heads, longest, head_dim)
    q_THD, k_TKD, v_TKD = (torch.randn(total, count, head_dim) for count in (heads, kv_heads, kv_heads))
    positions_T = torch.cat([torch.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])
    out_THD = PrefillAttention(kv, first_slot, starts, lengths, positions_T)(0, q_THD, k_TKD, v_TKD)
    return q_THD, k_TKD, v_TKD, kv, out_THD


def check(starts: Sequence[int], lengths: Sequence[int], first_slot: int = 0) -> None:
    q_THD, k_TKD, v_TKD, kv, out_THD = prefill(starts, lengths, first_slot)
    t = 0
    for slot, (start, length) in enumerate(zip(starts, lengths, strict=True), first_slot):
        for position in range(start, start + length):
            assert torch.equal(kv[:, 0, slot, :, position], torch.stack([k_TKD[t], v_TKD[t]]))
            keys, values = kv[:, 0, slot, 0, : position + 1]
            expected_HD = torch.softmax(q_THD[t] @ keys.T / keys.shape[1] ** 0.5, -1) @ values
            torch.testing.assert_close(out_THD[t], expected_HD, atol=1e-5, rtol=0)
            t += 1


PREFILLS = st.lists(st.tuples(st.sampled_from([0, 0, 1, 16, 32]), st.integers(1, 40)), min_size=1, max_size=8)


@settings(deadline=None, max_examples=40)
@given(PREFILLS, st.integers(0, 2))
def test_each_token_attends_to_all_before_it(sequences, first_slot):
    check([start for start, _ in sequences], [length for _, length in sequences], first_slot)


def test_long_prompts_after_a_cached_prefix(monkeypatch):
    monkeypatch.setattr(attention, "QUERIES_PER_PIECE", 8)
    check([4, 0, 4, 4], [30, 30, 29, 3])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 300), st.sampled_from([0, 0, 16, 32, 144])), min_size=2, max_size=5))
def test_bfloat16_is_rounded_alike_alone_beside_others_and_after_a_prefix(sequences):
    torch.manual_seed(0)
    heads, kv_heads, head_dim = 4, 2, 32
    shape = (2, 1, len(sequences), kv_heads, 320, head_dim)
    kv = torch.zeros(shape, dtype=torch.bfloat16)
    alone: list[torch.Tensor] = []
    inputs: list[list[torch.Tensor]] = []
    starts = [cached if cached < length else 0 for length, cached in sequences]
    for slot, (length, _) in enumerate(sequences):
        qkv = [torch.randn(length, count, head_dim).bfloat16() for count in (heads, kv_heads, kv_heads)]
        attend = PrefillAttention(kv, slot, [0], [length], torch.arange(length))
        alone.append(attend(0, *qkv)[starts[slot] :])
        inputs.append([tensor[starts[slot] :] for tensor in qkv])
    lengths = [len(rest) for rest in alone]
    positions_T = torch.cat([torch.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])
    together = PrefillAttention(kv, 0, starts, lengths, positions_T)(0, *map(torch.cat, zip(*inputs, strict=True)))
    assert torch.equal(together, torch.cat(alone))


def test_bfloat16_is_rounded_alike_by_every_thread():
    """The values of equal keys cancel, so an order of adding up that differs between two threads shows in the sum."""
    torch.manual_seed(0)
    count, kv_heads, group, head_dim, longest = 4, 3, 3, 64, 99
    kv = torch.zeros(2, 1, count, kv_heads, 112, head_dim, dtype=torch.bfloat16)
    order = torch.randperm(longest - 1)
    large = 2.0**18 * torch.randn(kv_heads, longest // 2, head_dim)
    kv[0, 0, ..., order, :] = torch.randn(kv_heads, longest // 2, head_dim).bfloat16().repeat(1, 2, 1)
    kv[1, 0, ..., order, :] = torch.cat([large, -large], 1).bfloat16()
    small = [torch.randn(1, heads, head_dim).bfloat16() for heads in (kv_heads * group, kv_heads, kv_heads)]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        attend = DecodeAttention(kv, torch.full((count,), longest - 1), longest)
        out = attend(0, *(tensor.expand(count, -1, -1) for tensor in small))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(out, out[:1].expand_as(out))


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The query-key products of each call of the kernel; a mask over several sequences fails the test."""
    found: list[int] = []
    kernel = F.scaled_dot_product_attention

    def count(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any, **options: Any) -> Any:
        sequences, _, queries, _ = query.shape
        found.append(sequences * queries * key.shape[2])
        assert attn_mask is None or attn_mask.shape == (queries, key.shape[2])
        return kernel(query, key, value, attn_mask=attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", count)
    return found


@pytest.mark.parametrize(
    ("starts", "lengths"),
    [
        ([0] * 40, [1900] + [32] * 39),
        ([0] * 40, [660] * 4 + [140] * 36),
        ([64] * 40, [1500] + [32] * 39),
        ([0, 64, 128, 192] * 10, [140 + n for n in range(40)]),
    ],
)
def test_a_prefill_computes_what_its_prompts_take_apart(starts, lengths, products):
    prefill(starts, lengths)
    together = sum(products)
    products.clear()
    for start, length in zip(starts, lengths, strict=True):
        prefill([start], [length])
    assert together <= 1.2 * sum(products)
    # Causality needs half of the square of the new tokens. For an uncut prompt the kernel skips the rest by itself.
    needed = sum(n * s + (n * (n + 1) // 2 if s else n * n) for s, n in zip(starts, lengths, strict=True))
    assert together <= 1.5 * needed


def test_equal_prompts_take_one_call(products):
    prefill([16] * 8 + [0] * 8, [5] * 8 + [20] * 8)
    assert len(products) == 2
