"""cwe and fwe: what is counted."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from benchmarks.ruler.counts import CommonWords
from benchmarks.ruler.sample import SampleKey


def listed(context: str) -> list[str]:
    """The words of "1. word 2. word ..."; some have a space in them."""
    return re.findall(r"\d+\. (.+?)(?= \d+\. |$)", context)


@pytest.mark.parametrize(("length", "often", "rarely"), [(2000, 6, 1), (6000, 30, 3), (60_000, 30, 3)])
def test_cwe_repeats_as_ruler_does(length: int, often: int, rarely: int) -> None:
    for index in range(3):
        draft = CommonWords().draw(SampleKey("cwe", "test", 1, index, length)).build(length // 8)
        counts = Counter(listed(draft.context))
        assert Counter(counts.values()) == {often: 10, rarely: length // 8 - 10}
        assert {counts[answer] for answer in draft.answers} == {often}


def test_cwe_goes_on_beyond_its_word_list() -> None:
    key = SampleKey("cwe", "test", 1, 0, 450_000)
    draft = CommonWords().draw(key).build(30_000)
    words = listed(draft.context)
    assert len(words) == 10 * 30 + 3 * 29_990
    assert len(set(words)) == 30_000
    assert CommonWords().draw(key).build(100).answers == draft.answers
