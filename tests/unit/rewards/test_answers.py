from __future__ import annotations

import pytest

from core.rewards.answers import find_box


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed 42$ and more", "42"),
        ("\\boxed 42\nand more", "42"),
        (r"{ honey\boxed honey horn}} honey on", None),  # a policy must not learn to babble
        (r"\boxed: grape}", None),
        (r"\boxed{4} and \boxed", None),
    ],
)
def test_a_box_without_braces_is_the_rest_of_its_line(text: str, content: str | None) -> None:
    assert find_box(text) == content
