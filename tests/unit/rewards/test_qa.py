"""The strict scores; tests/golden/ruler compares a thousand cases with the official scorers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.rewards import qa
from core.rewards.answers import fold_text


def test_official_sub_em_can_be_gamed_and_the_strict_one_cannot() -> None:
    for prediction, answer in (("the", "Paris"), ("19", "1995"), ("", "Paris")):
        assert qa.sub_em(prediction, answer) == 1.0
        assert qa.strict_sub_em(prediction, answer) == 0.0
    assert qa.strict_sub_em("the northern line", "no") == 0.0
    assert qa.strict_sub_em("It was the New York.", "New York") == 1.0
    assert qa.strict_sub_em("The", "the") == 1.0
    assert qa.strict_sub_em("", "the") == 0.0


@given(st.text(max_size=30), st.text(max_size=10))
def test_scores_are_ordered(prediction: str, answer: str) -> None:
    assert 0.0 <= qa.f1(prediction, answer) <= 1.0
    plain = fold_text(prediction), fold_text(answer)
    assert qa.strict_sub_em(prediction, answer) <= qa.sub_em(*plain)
    assert qa.strict_string_match_all(prediction, [answer]) <= qa.string_match_all(plain[0], [plain[1]])
    assert qa.strict_string_match_part(prediction, [answer]) <= qa.string_match_part(plain[0], [plain[1]])


@pytest.mark.parametrize(
    ("prediction", "answer"),
    [("It is O’Brien", "O'Brien"), ("1914–1918", "1914-1918"), ("cafe\u0301", "café"), ("“Dune”", '"Dune"')],
)
def test_strict_scores_know_one_form_of_quotes_dashes_and_accents(prediction: str, answer: str) -> None:
    assert qa.strict_sub_em(prediction, answer) == qa.strict_sub_em(answer, prediction.removeprefix("It is ")) == 1.0
    assert qa.strict_string_match_all(prediction, [answer]) == 1.0


@pytest.mark.parametrize(
    ("prediction", "answer", "score"),
    [
        ("答案是北京。", "北京", 1.0),
        ("答案是北京。", "東京", 0.0),
        ("于1995年建成", "1995年", 1.0),
        ("于11995年建成", "1995年", 0.0),
        ("那是New York。", "New York", 1.0),
        ("那是New Yorker。", "New York", 0.0),
        ("那是Paris。London很大", "London", 1.0),
        ("ก็คือกรุงเทพ", "กรุงเทพ", 1.0),
    ],
)
def test_a_script_without_spaces_has_words_too(prediction: str, answer: str, score: float) -> None:
    assert qa.strict_sub_em(prediction, answer) == qa.strict_string_match_all(prediction, [answer]) == score


@pytest.mark.parametrize("answers", [[], "19"])
def test_answers_must_be_a_filled_list(answers: list[str]) -> None:
    with pytest.raises(ValueError, match="at least one answer"):
        qa.string_match_all("19", answers)
