"""Boxed answers; tests/golden/ruler compares a thousand cases with the official scorers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.rewards.boxed import find_boxed

balanced = st.recursive(
    st.text(alphabet="ab= \\", max_size=5),
    lambda inner: st.builds(lambda left, middle, right: f"{left}{{{middle}}}{right}", inner, inner, inner),
)


@given(balanced, st.text(max_size=30))
def test_what_is_boxed_comes_back(content: str, before: str) -> None:
    text = before.replace("\\", "") + "\\boxed{" + content + "}"
    assert find_boxed(text + "} after") == content
