from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.rewards.boxed import boxed_reward, find_boxed, is_equiv, normalize_math


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("so \\boxed{42}", "42"),
        ("\\boxed{1} then \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{a{b}{c{d}}} tail }", "a{b}{c{d}}"),
        ("\\boxed{}", ""),
        ("\\boxed{never closed", None),
        ("\\boxed 7$ and more", "7"),
        ("\\fbox{7}", None),
        ("no box", None),
        ("", None),
    ],
)
def test_last_boxed(text: str, content: str | None) -> None:
    assert find_boxed(text) == content


balanced = st.recursive(
    st.text(alphabet="ab= \\", max_size=5),
    lambda inner: st.builds(lambda left, middle, right: f"{left}{{{middle}}}{right}", inner, inner, inner),
)


@given(balanced, st.text(max_size=30))
def test_what_is_boxed_comes_back(content: str, before: str) -> None:
    text = before.replace("\\", "") + "\\boxed{" + content + "}"
    assert find_boxed(text + "} after") == content


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("\\dfrac12", "\\frac{1}{2}"),
        ("0.5", "1/2"),
        (".5", "\\frac{1}{2}"),
        ("x = 3", "3"),
        ("\\sqrt3", "\\sqrt{3}"),
        ("90^\\circ", "90"),
        ("10\\text{ cm}", "10"),
        ("50\\%", "50"),
        ("\\left( 1, 2 \\right)", "(1,2)"),
    ],
)
def test_equivalent(first: str, second: str) -> None:
    assert is_equiv(first, second)


@pytest.mark.parametrize(("first", "second"), [("1/2", "1/3"), ("a/b", "a / b"), ("\\frac", "\\frac "), ("12", "1 3")])
def test_not_equivalent(first: str, second: str) -> None:
    assert not is_equiv(first, second)


def test_malformed_latex_is_an_error_here_and_text_there() -> None:
    with pytest.raises(ValueError, match="without an argument"):
        normalize_math("2\\sqrt")
    assert is_equiv("2\\sqrt", "2\\sqrt")


def test_boxed_reward_takes_any_answer_in_any_case() -> None:
    assert boxed_reward("... \\boxed{new  york}", ["Paris", "New York"]) == 1.0
    assert boxed_reward("... \\boxed{York}", ["Paris", "New York"]) == 0.0
    assert boxed_reward("New York", ["New York"]) == 0.0


def test_boxed_reward_looks_at_the_last_300_characters() -> None:
    assert boxed_reward("\\boxed{a}" + "." * 291, ["a"]) == 1.0
    assert boxed_reward("\\boxed{a}" + "." * 292, ["a"]) == 0.0
    assert boxed_reward("\\boxed{b} \\boxed{a}", ["b"]) == 0.0


def test_training_reward_does_not_know_fractions() -> None:
    assert boxed_reward("\\boxed{0.5}", ["1/2"]) == 0.0
