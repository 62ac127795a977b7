from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchmarks.ruler.fit import TOLERANCE, fit_units, token_counter


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=300),
    st.integers(0, 100),
    st.integers(1, 5),
    st.integers(10, 20_000),
)
def test_fit_is_within_the_limit_and_close(sizes: list[int], overhead: int, smallest: int, limit: int) -> None:
    def tokens(units: int) -> int:
        rounds, rest = divmod(units, len(sizes))
        return overhead + rounds * sum(sizes) + sum(sizes[:rest])

    if tokens(smallest) > limit:
        with pytest.raises(ValueError, match="over the limit"):
            fit_units(tokens, limit, smallest=smallest)
        return
    units, total = fit_units(tokens, limit, smallest=smallest)
    assert total == tokens(units) <= limit
    assert limit - total <= max(TOLERANCE * limit, 400)


def test_few_whole_documents_are_tokenized() -> None:
    probes: list[int] = []

    def tokens(units: int) -> int:
        probes.append(60 + 34 * units)
        return probes[-1]

    units, total = fit_units(tokens, 448_000)
    assert 448_000 - 448 <= total <= 448_000
    assert units == (total - 60) // 34
    assert sum(probes) < 1.5 * 448_000


def test_too_few_units_are_an_error_and_enough_are_not() -> None:
    with pytest.raises(ValueError, match="all 10 units together have 1000 tokens, too few for 2000"):
        fit_units(lambda n: 100 * n, 2000, largest=10)
    assert fit_units(lambda n: 100 * n, 1050, largest=10) == (10, 1000)


def test_every_kind_of_tokenizer_counts() -> None:
    raw = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for tokenizer in (raw, PreTrainedTokenizerFast(tokenizer_object=raw), str.split):
        assert token_counter(tokenizer)("a b  a") == 3
    with pytest.raises(TypeError, match="must be callable"):
        token_counter(7)
