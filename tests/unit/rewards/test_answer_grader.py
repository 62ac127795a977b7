"""Short answers: equal once normalised, or the judge's word; empty and endless ones are wrong unasked."""

from __future__ import annotations

import pytest

from core.rewards.answer_grader import MAX_WORDS, AnswerGrader


@pytest.mark.parametrize(
    ("prediction", "answers", "correct", "by"),
    [
        ("Paris", ("paris",), True, "equal"),
        ("The  Paris.", ("Rome", "paris"), True, "equal"),
        ("+", ("+",), True, "equal"),
        ("-", ("+",), False, "different"),
        ("the", ("a",), False, "different"),
        ("Paris, France", ("Paris",), False, "different"),
        ("-28", ("28",), False, "different"),
        ("28", ("−28",), False, "different"),
        ("−28", ("-28",), True, "equal"),
        ("1.5", ("15",), False, "different"),
        ("3/4", ("34",), False, "different"),
        ("x^2", ("x2",), False, "different"),
        ("-x", ("x",), False, "different"),
        ("2*3", ("23",), False, "different"),
        ("$10", ("10%",), False, "different"),
        ("C++", ("C",), False, "different"),
        ("1,000.", ("1000",), True, "equal"),
        ("July 4, 1776", ("july 4 1776",), True, "equal"),
        ("U.S.", ("US",), True, "equal"),
        ("Coca-Cola's", ("cocacolas",), True, "equal"),
        ("", ("Paris",), False, "no_answer"),
        (" \n", ("Paris",), False, "no_answer"),
        ("word " * (MAX_WORDS + 1), ("word",), False, "too_long"),
        ("x " * MAX_WORDS, ("x " * MAX_WORDS,), True, "equal"),
    ],
)
async def test_rules(prediction: str, answers: tuple[str, ...], correct: bool, by: str) -> None:
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
