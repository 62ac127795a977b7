"""Rewards that a recipe may name; any other `def reward(task, answer) -> float` will do as well."""

from __future__ import annotations

from core.rewards.boxed import boxed_reward
from core.types import Task


def exact(task: Task, answer: str) -> float:
    """Return 1 if the answer is one of the accepted texts, spaces around it aside, else 0."""
    return float(answer.strip() in task.answers)


def boxed(task: Task, answer: str) -> float:
    r"""Return 1 if the last `\boxed{}` of the answer holds an accepted one, else 0."""
    return boxed_reward(answer, task.answers)
