"""Rewards that a recipe may name; any other `def reward(task, answer) -> float` will do as well."""

from __future__ import annotations

from functools import cache

from core.rewards.answer_grader import YES_NO, is_accepted, is_same_text, open_answer
from core.rewards.answers import SPACELESS_CHARACTER, fold_text, unwrap
from core.rewards.math_grader import MathGrader
from core.rewards.qa import f1, max_over
from core.types import Task


def exact(task: Task, answer: str) -> float:
    """Return 1 if the answer is an accepted short answer (core/rewards/README.md), else 0."""
    return float(is_accepted(answer, task.answers))


def token_f1(task: Task, answer: str) -> float:
    """Return the best F1 of the answer's words over the accepted answers; what stands in its last box counts, else all.

    Where exact answers are rare, more groups of rollouts differ in it. If an accepted answer has Chinese, Japanese or
    another script without spaces, each character of these is a word, as MLQA's score has it for Chinese. A yes or
    no counts only as a whole: 不是 holds 是.
    """
    return max_over(_score_words, open_answer(answer), task.answers)


def _score_words(prediction: str, answer: str) -> float:
    if SPACELESS_CHARACTER.search(answer):
        if any(unwrap(fold_text(text)) in YES_NO for text in (prediction, answer)):
            return float(is_same_text(prediction, answer))
        prediction, answer = (SPACELESS_CHARACTER.sub(r" \g<0> ", fold_text(text)) for text in (prediction, answer))
    return f1(prediction, answer)


async def boxed(task: Task, answer: str) -> float:
    r"""Return 1 if the last `\boxed{}` of the answer holds an accepted mathematical answer, else 0.

    An answer that is nothing but a number needs no box.
    """
    return float((await open_grader().grade(task.question, answer, task.answers)).correct)


@cache
def open_grader() -> MathGrader:
    """Open the grader of this process, whose workers end with it."""
    return MathGrader()
