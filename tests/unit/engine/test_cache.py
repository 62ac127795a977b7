"""The prefix store holds what was put in, evicts the oldest, and never confuses two prefixes."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.engine.cache import PrefixStore, SlotCache
from core.engine.model import ModelConfig

CONFIG = ModelConfig(8, 4, 4, 1, 1, 1, 1, 1e-6, 64, False, False, False, False, False, (1.0,), 1.0)


def make_store(blocks: int) -> PrefixStore:
    cache = SlotCache(CONFIG, slots=2, max_len=32, dtype=torch.float32, device=torch.device("cpu"))
    return PrefixStore(cache, blocks=blocks, block_size=4)


def value(tokens: list[int], position: int) -> float:
    """Stands for the key at `position`: depends on all tokens up to it, as a real one does."""
    return float(hash(tuple(tokens[: position + 1])) % 100_003)


def fill(store: PrefixStore, tokens: list[int]) -> None:
    store.cache.kv[:, :, 0, 0, : len(tokens), 0] = torch.tensor([value(tokens, i) for i in range(len(tokens))])


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=24), min_size=1, max_size=30), st.integers(1, 12))
def test_whatever_matches_was_computed_for_the_same_prefix(sequences, blocks):
    store = make_store(blocks)
    for tokens in sequences:
        found = store.match(tokens)
        cached = store.load(found, slot=1)
        assert cached == 4 * len(found) < len(tokens)
        expected = torch.tensor([value(tokens, i) for i in range(cached)])
        assert torch.equal(store.cache.kv[0, 0, 1, 0, :cached, 0], expected)
        fill(store, tokens)
        store.insert(tokens, slot=0)


def test_oldest_prefix_goes_first():
    store = make_store(blocks=4)
    for first in (1, 2):
        tokens = [first] * 8
        fill(store, tokens)
        store.insert(tokens, slot=0)
    assert len(store.match([1] * 9)) == 2  # touched: now 2 is the oldest
    tokens = [3] * 8
    fill(store, tokens)
    store.insert(tokens, slot=0)
    assert len(store.match([1] * 9)) == 2
    assert len(store.match([3] * 9)) == 2
    assert store.match([2] * 9) == []


def test_the_last_token_is_always_left_to_compute():
    store = make_store(blocks=8)
    fill(store, [1] * 8)
    store.insert([1] * 8, slot=0)
    assert len(store.match([1] * 8)) == 1


def test_nobody_waits_for_a_block_that_no_store_will_hold():
    assert make_store(blocks=1).missing_prefix([1] * 9, matched=0) == (1, 1, 1, 1)
    assert make_store(blocks=0).missing_prefix([1] * 9, matched=0) == ()
