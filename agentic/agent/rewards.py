"""Rewards that a recipe may name; any other `def reward(task, answer) -> float` will do as well."""

from __future__ import annotations

from functools import cache

from core.rewards.answer_grader import is_accepted
from core.rewards.math_grader import MathGrader
from core.types import Task


def exact(task: Task, answer: str) -> float:
    """Return 1 if the answer is an accepted short answer (core/rewards/README.md), else 0."""
    return float(is_accepted(answer, task.answers))


async def boxed(task: Task, answer: str) -> float:
    r"""Return 1 if the last `\boxed{}` of the answer holds an accepted mathematical answer, else 0."""
    return float((await open_grader().grade(task.question, answer, task.answers)).correct)


@cache
def open_grader() -> MathGrader:
    """Open the grader of this process, whose workers end with it."""
    return MathGrader()
