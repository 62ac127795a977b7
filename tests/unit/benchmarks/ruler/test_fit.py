from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.ruler.generate import TOLERANCE, fit_units


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


def test_too_few_units_are_an_error_and_enough_are_not() -> None:
    with pytest.raises(ValueError, match="all 10 units together have 1000 tokens, too few for 2000"):
        fit_units(lambda n: 100 * n, 2000, largest=10)
    assert fit_units(lambda n: 100 * n, 1050, largest=10) == (10, 1000)
