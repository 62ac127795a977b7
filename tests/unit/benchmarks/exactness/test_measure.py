"""The measure against its definition: a trained token is exact where the engine sampled it behind the same tokens."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.exactness.command import Log, Row, measure

TOKENS = st.lists(st.integers(0, 2), max_size=4)
LOG = st.lists(st.tuples(TOKENS, TOKENS), max_size=4)
ROW = st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=6).map(
    lambda pairs: ([token for token, _ in pairs], [int(wanted) for _, wanted in pairs])
)


def list_places(row: Row) -> list[tuple[int, ...]]:
    """Return each token of a row behind all that stand before it."""
    return [tuple(row[0][: end + 1]) for end in range(len(row[0]))]


def make_rows(log: Log) -> list[Row]:
    """Return the rows that are right by definition: each call alone, its reply trained."""
    return [([*prompt, *reply], [0] * len(prompt) + [1] * len(reply)) for prompt, reply in log]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # of a machine with other work
@given(LOG, st.lists(ROW, max_size=3))
def test_it_counts_what_its_definition_says(log: list, rows: list) -> None:
    whole = make_rows(log)
    sampled = Counter(place for row in whole for place, m in zip(list_places(row), row[1], strict=True) if m)
    trained = Counter(place for row in rows for place, m in zip(list_places(row), row[1], strict=True) if m)
    found = measure(log, rows)
    assert found["sampled"] == sum(len(reply) for _, reply in log)
    assert found["trained"] == sum(min(number, sampled[place]) for place, number in trained.items())
    assert found["unseen"] == sum(number for place, number in trained.items() if not sampled[place])
    assert found["trained"] + found["again"] + found["unseen"] == sum(sum(mask) for _, mask in rows)
    assert found["row tokens"] == sum(len(tokens) for tokens, _ in rows)
    assert found["twice"] == found["row tokens"] - len({place for row in rows for place in list_places(row)})
    assert (found["rollouts"], found["rows"]) == (1, len(rows))
