"""Short answers and boxes: equal once normalised, or the judge's word; empty and endless ones are wrong unasked.

tests/golden/graders has the pairs of label and answer that every grader must tell apart.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.rewards.answer_grader import MAX_WORDS, AnswerGrader, holds_answer, is_accepted, reward_finding
from core.rewards.answers import find_box
from core.rewards.boxed import find_boxed


@pytest.mark.parametrize(
    ("prediction", "answers", "correct", "by"),
    [
        ("The  Paris.", ("Rome", "paris"), True, "equal"),
        ("Paris, France", ("Paris",), False, "different"),
        ("汉" * 2 * MAX_WORDS + "字汉", ("汉",), False, "too_long"),
        ("", ("Paris",), False, "no_answer"),
        (" \n", ("Paris",), False, "no_answer"),
        ("word " * (MAX_WORDS + 1), ("word",), False, "too_long"),
        ("x " * MAX_WORDS, ("x " * MAX_WORDS,), True, "equal"),
    ],
)
async def test_what_decided_is_named(prediction: str, answers: tuple[str, ...], correct: bool, by: str) -> None:
    grader = AnswerGrader()
    assert await grader.grade("Where?", prediction, answers) == (correct, by)


async def test_the_judge_is_asked_only_where_the_rules_see_a_difference() -> None:
    asked: list[str] = []

    async def judge(prompt: str) -> str:
        asked.append(prompt)
        return "VERDICT: SAME"

    grader = AnswerGrader(judge)
    assert await grader.grade("Where?", "paris", ("Paris",)) == (True, "equal")
    assert await grader.grade("Where?", "", ("Paris",)) == (False, "no_answer")
    assert await grader.grade("Where?", "word " * 501, ("Paris",)) == (False, "too_long")
    assert asked == []
    assert await grader.grade("Where?", "the capital of France", ("Paris",)) == (True, "judge")
    assert "answer to a question with" in asked[0]


async def test_a_judge_that_fails_accepts_nothing() -> None:
    async def judge(prompt: str) -> str:
        raise ConnectionError("down")

    grader = AnswerGrader(judge)
    assert await grader.grade("Where?", "the capital of France", ("Paris",)) == (False, "no_reply")


@pytest.mark.parametrize(
    ("text", "answer", "held"),
    [
        ("amber lamp: owner Ada Stone, maker tom baker.", "ada stone", True),
        ("amber lamp: owner adam stone.", "ada", False),
        ("Ada\nStone", "ada stone", False),
        ("the O’Brien family", "O'Brien", True),
        ("built in 1995.", "19", False),
        ("built in 1995.", "1995", True),
        ("from 1990–1995, they", "1995", True),
        ("it holds 1,995.0 litres", "1995", True),
        ("-28", "28", False),
        ("28", "−28", False),
        ("1.28 or 28.5", "28", False),
        ("28.", "28", True),
        ("x28", "28", False),
        ("There is no better one, and yes, it is north.", "no", False),
        ("yes", "Yes", False),
        ("written in C++", "C++", True),
        ("written in C", "C++", False),
        ("anything", "", False),
        ("首都是北京，人口很多。", "北京", True),
        ("首都是北京，人口很多。", "是", False),
        ("首都是 北京 大学", "北京大学", True),
        ("首都是東京。", "北京", False),
        ("该塔建于1995年。", "1995", True),
        ("该塔建于1995年。", "19", False),
        ("该塔建于3.1995年。", "1995", False),
        ("该塔建于1995。2000年重修", "1995", True),
        ("这是Paris和Rome的地图", "Paris", True),
        ("这是Parish的地图", "Paris", False),
        ("他是日本人、东京出身", "日本人", True),
        ("เมืองหลวงคือกรุงเทพ", "กรุงเทพ", True),
        ("共有3万人", "3", False),
        ("共有3万人", "30000", True),
        ("于1949成立，共3千克", "1949", True),
        ("Это Москва.", "Москва", True),
        ("Это Москвариум.", "Москва", False),
    ],
)
def test_a_text_holds_an_answer_as_whole_words_or_by_its_value(text: str, answer: str, held: bool) -> None:
    assert holds_answer(text, ["zebra", answer]) is held
    assert not holds_answer(text, ["zebra"])


@pytest.mark.parametrize(
    ("answer", "label", "same"),
    [
        ("25个苹果", "25", True), ("12名学生", "12", True), ("3个月", "3", True), ("3个小时", "3小时", True),
        ("25美元", "$25", True), ("25美元", "25元", False), ("3年", "3 years", True), ("60公里/小时", "60 km/h", True),
        ("3个半月", "3", False), ("25人以上", "25", False), ("3", "3个火枪手", False),
        ("3", "《3个火枪手》", False), ("100000", "10万个为什么", False),
        ("3个不到", "3", False), ("3个十", "3", False), ("100元", "100人民币", True),
        ("5米/秒", "5 m/s", True), ("a, b", "a+b", False), ("-a, -c", "a, c", False),
        ("A、B、D", "ABD", True), ("A、B", "A,B", True), ("A、D、B", "ABD", False), ("A、B", "B", False),
        ("是的。", "是", True), ("不是", "是", False), ("3 times", "3", True), ("3 times pi", "3", False),
    ],
)  # fmt: skip
def test_units_counters_choices_and_yes_in_chinese(answer: str, label: str, same: bool) -> None:
    assert is_accepted(answer, [label]) is same


def test_a_finding_is_rewarded_once_and_not_without_answers() -> None:
    assert reward_finding("it is 7 acorns", "", ["7", "seven"]) == 1.0
    assert reward_finding("it is 7 acorns", "there are seven", ["7", "seven"]) == 0.0
    assert reward_finding("", "", ["7"]) == 0.0
    assert reward_finding("it is 7 acorns", "", []) is None


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


balanced = st.recursive(
    st.text(alphabet="ab= \\", max_size=5),
    lambda inner: st.builds(lambda left, middle, right: f"{left}{{{middle}}}{right}", inner, inner, inner),
)


@given(balanced, st.text(max_size=30))
def test_what_is_boxed_comes_back(content: str, before: str) -> None:
    text = before.replace("\\", "") + "\\boxed{" + content + "}"
    assert find_boxed(text + "} after") == content
