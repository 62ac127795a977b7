"""Pages hold what was put in, are shared by equal prefixes alone, and go to others when nobody holds them any more."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.engine.cache import NULL_PAGE, PagedCache
from tests.unit.conftest import MODEL_CONFIG, compute, count_idle, read_stamps, stamps

PAGE = 4


def make_cache(pages: int) -> PagedCache:
    return PagedCache(MODEL_CONFIG, pages * PAGE, PAGE, torch.float32, torch.device("cpu"))


def run(cache: PagedCache, tokens: list[int]) -> list[int]:
    """Compute a sequence as an engine does; return the pages that it shared."""
    shared = cache.match(tokens)
    pages = cache.hold(shared, len(tokens))
    assert pages is not None
    compute(cache, pages, tokens)
    cache.name(tokens, pages)
    cache.release(pages)
    return shared


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=24), min_size=1, max_size=30), st.integers(6, 12))
def test_whatever_matches_was_computed_for_the_same_prefix(sequences, pages):
    cache = make_cache(pages)
    for tokens in sequences:
        shared = cache.match(tokens)
        cached = len(shared) * PAGE
        assert cached < len(tokens)
        assert torch.equal(read_stamps(cache, shared, cached), stamps(tokens)[:cached])
        run(cache, tokens)
        assert count_idle(cache) == pages


CHOICES = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.lists(st.integers(0, 1), min_size=1, max_size=20)),
        st.tuples(st.just("end"), st.integers(0, 100)),
        st.tuples(st.just("forget"), st.just(0)),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=200)
@given(CHOICES, st.integers(5, 9))
def test_a_page_belongs_to_those_who_hold_it_until_they_let_go(choices, count):
    cache = make_cache(count)
    held: list[tuple[list[int], list[int]]] = []
    for what, argument in choices:
        if what == "start":
            shared, before = cache.match(argument), count_idle(cache)
            pages = cache.hold(shared, len(argument))
            if pages is None:
                # It was refused rightly: of the pages that it does not share, too few were idle.
                taken = {page for _, others in held for page in others}
                assert len(set(shared) - taken) + cache.count_pages(len(argument)) - len(shared) > before
                assert count_idle(cache) == before
                continue
            compute(cache, pages, argument)
            cache.name(argument, pages)
            held.append((argument, pages))
        elif what == "end" and held:
            cache.release(held.pop(argument % len(held))[1])
        elif what == "forget":
            cache.forget()
        holders = Counter(page for _, pages in held for page in pages)
        assert NULL_PAGE not in holders
        assert count_idle(cache) == count - len(holders)
        for tokens, pages in held:
            assert torch.equal(read_stamps(cache, pages, len(tokens)), stamps(tokens))


def test_oldest_prefix_goes_first():
    cache = make_cache(4)
    run(cache, [1] * 8)
    run(cache, [2] * 8)
    assert len(run(cache, [1] * 8)) == 1  # used again: now 2 is the oldest
    run(cache, [3] * 8)
    assert len(cache.match([1] * 9)) == 2
    assert len(cache.match([3] * 9)) == 2
    assert cache.match([2] * 9) == []


def test_of_two_equal_pages_one_has_the_name_and_later_ones_follow_it():
    cache = make_cache(8)
    first, second = (cache.hold([], 8) for _ in range(2))
    assert first is not None
    assert second is not None
    for pages in (first, second):
        cache.name([1] * 8, pages)
    assert cache.match([1] * 9) == first
    cache.release(first)
    cache.release(second)
    assert count_idle(cache) == 8


@pytest.mark.parametrize(("computed", "missing"), [(0, 4), (4, 8), (6, 8), (8, 0)])
def test_a_prefix_is_missing_up_to_the_end_of_the_first_page_that_is_not_computed(computed, missing):
    assert make_cache(2).missing_prefix([1] * 9, computed) == (1,) * missing
