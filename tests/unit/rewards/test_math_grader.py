"""The chain of rules: what counts as the same integer, which box counts, who decides, and who has no say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.rewards.answer_grader import find_answer
from core.rewards.math_grader import Grade, MathGrader, grade_by_rules
from core.rewards.numbers import parse_integer


def grade(text: str, answers: list[str]) -> Grade | None:
    """Grade by rules alone."""
    answer = find_answer(text)
    return Grade(False, "no_answer", None) if answer is None else grade_by_rules(answer, answers)


SAME_AS_73 = [
    "73", "073", "0073", "73.0", "73.", "73.00", "$73$", "$73.$", "$$073$$", r"\(73\)", r"\[73\]", r"\text{73}",
    r"$\text{073}$.", r"\mathbf{73}", r"\boldsymbol{73}", "{73}", " 73 ", "+73", r"73^\circ", r"73^{\circ}", "73°",
    r"\$73",
]  # fmt: skip


@pytest.mark.parametrize("form", SAME_AS_73)
@pytest.mark.parametrize("label", ["73", "073", "73.0"])
def test_forms_of_one_integer_are_equal(form: str, label: str) -> None:
    assert grade(rf"so it is \boxed{{{form}}}", [label]) == Grade(True, "number", "73")


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("1,000", "1000"), ("1{,}000", "1000"), (r"1\,000", "1000"), (r"1,\!000", "1000"), ("12,345,678", "12345678"),
        ("-3", "-3"), ("−3", "-3"), ("- 3", "-3"), ("-0", "0"), ("000", "0"), ("9" * 5000, "9" * 5000),
        *((text, None) for text in ("", "7 3", "25, 33", "23,33", "7.3", "73e-1", "x", "25 and 3", "25!", "3ab")),
        ("2 pi", None), ("5 million", "5000000"), ("5 dozen", None), ("٧٣", None),
        ("３万", "30000"), ("3\\text{ 万元}", "30000"), ("1.5亿", "150000000"), ("2百万人", "2000000"), ("5千", "5000"),
        ("5千克", "5"), (r"5\text{千瓦}", "5"), ("5 个", "5"), ("3万5千", None), (r"5\text{半}", None), ("5倍", "5"),
    ],
)  # fmt: skip
def test_thousands_signs_and_size_and_what_is_no_integer(text: str, digits: str | None) -> None:
    assert parse_integer(text) == digits


@pytest.mark.timeout(20)
@pytest.mark.parametrize("part", ["$", "{", "}", "°", "^ ", r"\text{", r"\(", "$x", " ", "1,", "0", r"\,", "ab ", "="])
def test_long_texts_take_no_longer_than_their_length(part: str) -> None:
    """A planner that has gone astray repeats itself; the trainer waits for the verdict."""
    text = part * (100_000 // len(part))
    for whole in (text, text + "x", text + "}" * text.count("{"), f"\\boxed{{{text}x}}", f"5{text}!", f"-{text}x"):
        grade(whole, ["73"])


@given(st.integers(-(10**9), 10**9), st.integers(0, 3), st.booleans(), st.sampled_from(["{}", "${}$", r"\text{{{}}}"]))
def test_any_form_of_an_integer_is_read_and_no_other_integer_is(n: int, zeros: int, grouped: bool, marks: str) -> None:
    digits = f"{abs(n):,}" if grouped else "0" * zeros + str(abs(n))
    form = marks.format(("-" if n < 0 else "") + digits)
    assert parse_integer(form) == str(n)
    assert grade(rf"\boxed{{{form}}}", [str(n + 1)]) == Grade(False, "number", str(n))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"first \boxed{25}, no: \boxed{33}", "33"),
        (r"\boxed 25$ and then \boxed{33}", "33"),
        (r"\boxed{\boxed{33}}", "33"),
        (r"\boxed{25} then \boxed{3", None),
        ("the answer is 33", None),
        ("033", "033"),
        (r"\boxed{}", None),
        ("", None),
    ],
)
def test_the_last_box_alone_counts(text: str, answer: str | None) -> None:
    found = find_answer(text)
    assert found == answer or parse_integer(found or "") == answer


def test_the_rules_leave_expressions_to_others_but_for_arithmetic_that_nobody_has_done() -> None:
    assert grade(r"\boxed{\frac{\frac{292}{2}}{2}}", ["73"]) is None
    for sum_of_numbers in ("70+3", r"7\times 10+3", "2^3", r"\sqrt{5329}", "80 - 7", "5!"):
        assert grade(rf"\boxed{{{sum_of_numbers}}}", ["73"]) == Grade(False, "number", sum_of_numbers)
    assert grade(r"\boxed{70 + 3 = 73}", ["73"]) == Grade(True, "number", "73")
    assert grade(r"\boxed{73\text{折}}", ["73"]) == Grade(False, "number", r"73\text{折}")
    assert grade(r"\boxed{73\text{ dozen}}", ["73"]) == Grade(False, "number", r"73\text{ dozen}")
    assert grade(r"\boxed{73\text{倍}}", ["73"]) == Grade(True, "number", "73"), "73 times as much"
    assert grade(r"\boxed{北京！}", ["北京"]) == Grade(True, "text", "北京！")
    assert grade(r"\boxed{1a3_{16}}", ["1A3_{16}"]) == Grade(True, "number", "1a3_{16}")
    assert grade(r"\boxed{73}", [r"\frac{\pi}{2}"]) is None
    assert grade("I do not know", ["73"]) == Grade(False, "no_answer", None)


@pytest.mark.parametrize("answer", [r"55_{\text{eight}}", "55_8 = 45_{10}", "x_1"])
def test_other_forms_of_a_base_are_left_to_math_verify(answer: str) -> None:
    assert grade(rf"\boxed{{{answer}}}", ["55_8"]) is None


@asynccontextmanager
async def open_grader(**options: Any) -> AsyncIterator[MathGrader]:
    grader = MathGrader(**{"timeout_s": 60, **options})
    try:
        yield grader
    finally:
        await grader.close()


async def test_math_verify_decides_what_the_integer_rule_cannot() -> None:
    async with open_grader() as grader:
        double = r"\frac{\frac{292}{2}}{2}"
        assert await grader.grade("q", rf"\boxed{{{double}}}", ["73"]) == Grade(True, "math_verify", double)
        assert (await grader.grade("q", r"\boxed{0.25} \boxed{0.5}", [r"\frac{1}{2}"])).correct
        assert not (await grader.grade("q", r"\boxed{0.25} \boxed{0.5}", [r"\frac{1}{4}"])).correct
        assert await grader.grade("q", "no idea", [r"\frac{1}{4}"]) == Grade(False, "no_answer", None)
        assert (await grader.grade("q", r"\boxed{2}", ["1", "2"])).by == "number"
        with pytest.raises(ValueError, match="at least one answer"):
            await grader.grade("q", "73", [])


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        (r"6.6\times10^{-34}", r"1.6\times10^{-19}"),
        ("0.0000001", "0.0000002"),
        (r"\sqrt{3}\times10^{-34}", r"\sqrt{2}\times10^{-34}"),
        (r"\frac{\pi}{10^{20}}", r"\frac{2\pi}{10^{20}}"),
        ("(0.00000001, 0.5)", "(0.00000003, 0.5)"),
        (r"\begin{pmatrix}0.00000001\\2\end{pmatrix}", r"\begin{pmatrix}0.00000003\\2\end{pmatrix}"),
    ],
)
async def test_the_tolerance_is_relative(answer: str, label: str) -> None:
    async with open_grader() as grader:
        assert not (await grader.grade("q", rf"\boxed{{{answer}}}", [label])).correct
        assert (await grader.grade("q", rf"\boxed{{{label}}}", [label])).correct


class ScriptedJudge:
    def __init__(self, reply: str | Exception):
        self.reply = reply
        self.prompts: list[str] = []

    async def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply


async def test_the_judge_is_asked_once_and_only_where_the_rules_found_no_equality() -> None:
    judge = ScriptedJudge("They are alike.\nVERDICT: SAME")
    async with open_grader() as grader:
        assert (await grader.grade("q", r"\boxed{7}", ["73"], judge)) == Grade(False, "number", "7")
        assert (await grader.grade("q", r"\boxed{\pi}", ["73"], judge)).correct is False
        assert (await grader.grade("q", r"\boxed{0.5}", [r"\frac{\frac{2}{2}}{2}"], judge)).by == "math_verify"
        assert judge.prompts == []
        for _ in range(3):
            grade = await grader.grade("q", r"\boxed{\text{a half}}", [r"\frac{1}{2}"], judge)
            assert grade == Grade(True, "judge", r"\text{a half}")
        assert len(judge.prompts) == 1


@pytest.mark.parametrize(
    ("reply", "by"),
    [(RuntimeError("no server"), "no_reply"), ("", "no_reply"), ("They look alike.", "no_verdict")],
)
async def test_an_answer_that_its_judge_does_not_decide_is_wrong_by_that_name(reply, by) -> None:
    async with open_grader() as grader:
        grade = await grader.grade("q", r"\boxed{\pi}", [r"\frac{1}{2}"], ScriptedJudge(reply))
        assert grade == Grade(False, by, r"\pi")
