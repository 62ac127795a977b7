"""Attention over pages: what it computes, that rounding depends on nothing else, and how little prefill pads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from core.engine import attention, kernel
from core.engine.attention import Span, prepare_decode, prepare_step
from core.engine.cache import PagedCache
from tests.unit.conftest import MODEL_CONFIG, threads

PAGE = 16


@pytest.fixture(params=["kernel", "gather"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which a sequence decodes: our kernel where a compiler built it, and PyTorch's on gathered pages."""
    if request.param == "gather":
        monkeypatch.setattr(attention, "find_kernel", lambda: None)
    elif kernel.find_kernel() is None:
        pytest.skip("no C++ compiler here")
    return str(request.param)


def make_cache(pages: int, heads: int, head_dim: int, dtype: torch.dtype = torch.float32) -> PagedCache:
    config = replace(MODEL_CONFIG, num_kv_heads=heads, head_dim=head_dim)
    return PagedCache(config, pages * PAGE, PAGE, dtype, torch.device("cpu"))


def deal(lengths: Sequence[int]) -> list[list[int]]:
    """Give sequences of these lengths pages in a random order."""
    counts = [-(-length // PAGE) for length in lengths]
    pages = (torch.randperm(sum(counts)) + 1).tolist()
    return [[pages.pop() for _ in range(count)] for count in counts]


def run(spans: Sequence[Span], decoding: int, kv_heads: int = 1, group: int = 2, head_dim: int = 4) -> tuple[Any, ...]:
    """Attend with random queries, keys and values; return them, the cache, its places and the result."""
    cache = make_cache(sum(len(span.pages) for span in spans), kv_heads, head_dim)
    cache.kv.normal_()
    total = sum(span.length for span in spans)
    q_THD, k_TKD, v_TKD = (torch.randn(total, count, head_dim) for count in (kv_heads * group, kv_heads, kv_heads))
    _, attend = prepare_step(cache, spans[:decoding], spans[decoding:])
    return q_THD, k_TKD, v_TKD, cache, attend(0, q_THD, k_TKD, v_TKD)


def check(starts: Sequence[int], lengths: Sequence[int], decoding: int = 0, **sizes: int) -> None:
    torch.manual_seed(0)
    pages = deal([start + length for start, length in zip(starts, lengths, strict=True)])
    spans = [Span(*span) for span in zip(pages, starts, lengths, strict=True)]
    q_THD, k_TKD, v_TKD, cache, out_THD = run(spans, decoding, **sizes)
    t = 0
    for span in spans:
        for position in range(span.start, span.start + span.length):
            places = [span.pages[p // PAGE] * PAGE + p % PAGE for p in range(position + 1)]
            assert torch.equal(cache.kv[:, 0, places[-1]], torch.stack([k_TKD[t], v_TKD[t]]))
            keys_SKD, values_SKD = cache.kv[:, 0, places]
            q_KGD = q_THD[t].unflatten(0, (keys_SKD.shape[1], -1))
            scores_KGS = torch.einsum("kgd,skd->kgs", q_KGD, keys_SKD) / q_THD.shape[2] ** 0.5
            expected_KGD = torch.einsum("kgs,skd->kgd", scores_KGS.softmax(-1), values_SKD)
            torch.testing.assert_close(out_THD[t], expected_KGD.flatten(0, 1), atol=1e-5, rtol=0)
            t += 1


PREFILLS = st.lists(st.tuples(st.sampled_from([0, 0, 1, 16, 32]), st.integers(1, 40)), max_size=8)
DECODES = st.lists(st.integers(0, 70), max_size=8)


@settings(deadline=None, max_examples=60)
@given(PREFILLS, DECODES, st.sampled_from([(1, 1, 5), (1, 2, 4), (2, 3, 32), (3, 2, 64), (2, 1, 128)]))
def test_each_token_attends_to_all_before_it(prefills, decodes, sizes):
    if prefills or decodes:
        starts, lengths = [*decodes, *(s for s, _ in prefills)], [*(1 for _ in decodes), *(n for _, n in prefills)]
        check(starts, lengths, len(decodes), **dict(zip(("kv_heads", "group", "head_dim"), sizes, strict=True)))


@pytest.mark.parametrize("lengths", [[1], [5, 17, 16, 300]])
def test_each_way_to_decode_attends_to_all_before_it(lengths, decoder):
    check([length - 1 for length in lengths], [1] * len(lengths), len(lengths), kv_heads=2, group=3, head_dim=32)


def test_what_is_gathered_at_once_is_limited(monkeypatch, decoder):
    monkeypatch.setattr(attention, "GATHERED_BYTES", 3000)
    check([5, 17, 16, 300, 0, 0, 48, 48], [1, 1, 1, 1, 9, 9, 8, 8], 4, kv_heads=2, group=3, head_dim=32)


def test_long_prompts_after_a_cached_prefix(monkeypatch):
    monkeypatch.setattr(attention, "QUERIES_PER_PIECE", 8)
    check([4, 0, 4, 4], [30, 30, 29, 3])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 300), st.sampled_from([0, 0, 16, 32, 144])), min_size=2, max_size=5))
def test_bfloat16_is_rounded_alike_alone_beside_others_and_after_a_prefix(sequences):
    torch.manual_seed(0)
    heads, kv_heads, head_dim = 4, 2, 32
    pages = deal([length for length, _ in sequences])
    cache = make_cache(sum(map(len, pages)), kv_heads, head_dim, torch.bfloat16)
    alone: list[torch.Tensor] = []
    inputs: list[list[torch.Tensor]] = []
    starts = [cached if cached < length else 0 for length, cached in sequences]
    for mine, start, (length, _) in zip(pages, starts, sequences, strict=True):
        qkv = [torch.randn(length, count, head_dim).bfloat16() for count in (heads, kv_heads, kv_heads)]
        _, attend = prepare_step(cache, [], [Span(mine, 0, length)])
        alone.append(attend(0, *qkv)[start:])
        inputs.append([tensor[start:] for tensor in qkv])
    spans = [Span(*span) for span in zip(pages, starts, map(len, alone), strict=True)]
    together = prepare_step(cache, [], spans)[1](0, *map(torch.cat, zip(*inputs, strict=True)))
    assert torch.equal(together, torch.cat(alone))


def test_bfloat16_is_rounded_alike_by_every_thread(decoder):
    """The values of equal keys cancel, so an order of adding up that differs between two threads shows in the sum."""
    torch.manual_seed(0)
    count, kv_heads, group, head_dim, longest = 4, 3, 3, 64, 99
    pages = deal([longest] * count)
    cache = make_cache(sum(map(len, pages)), kv_heads, head_dim, torch.bfloat16)
    order = torch.randperm(longest - 1)
    large = 2.0**18 * torch.randn(longest // 2, kv_heads, head_dim)
    for mine in pages:
        places = torch.tensor([mine[p // PAGE] * PAGE + p % PAGE for p in order.tolist()])
        torch.manual_seed(1)
        cache.kv[0, 0, places] = torch.randn(longest // 2, kv_heads, head_dim).bfloat16().repeat(2, 1, 1)
        cache.kv[1, 0, places] = torch.cat([large, -large]).bfloat16()
    small = [torch.randn(1, heads, head_dim).bfloat16() for heads in (kv_heads * group, kv_heads, kv_heads)]
    with threads(2):  # four sequences: each thread takes whole ones
        table_NP = attention.make_table(cache, pages, longest)
        attend = prepare_decode(cache, table_NP, torch.full((count,), longest - 1))
        out = attend(0, *(tensor.expand(count, -1, -1) for tensor in small))
    assert torch.equal(out, out[:1].expand_as(out))


def test_the_kernel_leaves_small_numbers_as_they_are():
    kernel.find_kernel()
    assert 2.0**-1074 != 0.0
    assert (torch.tensor(2.0**-140) / 2).item() == 2.0**-141


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernel_that_was_built_gives_the_bits_of_one_sequence_beside_any_others(dtype):
    if kernel.find_kernel() is None:
        pytest.skip("no C++ compiler here")
    torch.manual_seed(0)
    lengths = [1, 31, 200, 77]
    pages = deal(lengths)
    cache = make_cache(sum(map(len, pages)), 2, 64, dtype)
    cache.kv.normal_()
    qkv = [torch.randn(len(lengths), heads, 64, dtype=dtype) for heads in (6, 2, 2)]
    spans = [Span(mine, length - 1, 1) for mine, length in zip(pages, lengths, strict=True)]
    together = prepare_step(cache, spans, [])[1](0, *qkv)
    with threads(2):  # one sequence: each thread takes some of its heads
        for i, span in enumerate(spans):
            alone = prepare_step(cache, [span], [])[1](0, *(x[i : i + 1] for x in qkv))
            assert torch.equal(alone[0], together[i])


def prefill(starts: Sequence[int], lengths: Sequence[int]) -> None:
    pages = deal([start + length for start, length in zip(starts, lengths, strict=True)])
    run([Span(*span) for span in zip(pages, starts, lengths, strict=True)], 0)


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
    assert together <= 1.55 * needed
