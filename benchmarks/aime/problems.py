"""The problems, by name, from a file or from the hub; how a single call asks them; how an answer is graded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.data.prepare import SETS, Questions, prepare
from benchmarks.harness.run import ask_once
from core.data.files import DataError
from core.data.tasks import read_tasks
from core.policy.base import Roles
from core.rewards.boxed import strip_latex
from core.rewards.math_grader import MathGrader
from core.rewards.numbers import parse_integer
from core.rollout.method import Method
from core.runs.files import Record
from core.text.tokenizer import Tokenizer, TokenTemplate, encode_text
from core.types import Sampling, Task, Trajectory

_read = partial(read_tasks, tell=True, require_context=False, distinct=True)
MESSAGE = "{question}\n\nPlease reason step by step, and put your final answer within \\boxed{}."
"""Asks for a box, as the last prompt of an agent does; the published baseline was not asked."""


def load_problems(source: str, folder: Path) -> tuple[str, list[Task]]:
    """Return name and problems of `source`: a file, `aime24` or `aime25` (from `folder`, downloaded if missing), or
    `owner/name:split` on the hub.

    Raises:
        DataError: there is no such data, or an answer is not an integer.
    """
    name, tasks = _load(source, folder)
    for task in tasks:
        if any(parse_integer(answer) is None for answer in task.answers):
            problem = f"{source}: {task.task_id}: answers {list(task.answers)} are no integers"
            raise DataError(f"{problem}. Fix: give problems of the AIME, whose answers are integers.")
    return name, tasks


def _load(source: str, folder: Path) -> tuple[str, list[Task]]:
    if Path(source).exists():
        return Path(source).stem, _read(source)
    named = SETS.get(source)
    if isinstance(named, Questions):
        path = folder / named.file
        if not path.is_file():
            prepare(source, folder)
        return source, _read(path)
    if ":" not in source:
        raise DataError(f"{source}: no such file. Fix: give a file, aime24, aime25, or owner/name:split on the hub.")
    return source.partition(":")[0].replace("/", "-"), _read(source)


class SingleCall(Method):
    """Asks once, without tools. An agent must beat this single call under the same budget."""

    def __init__(self, tokenizer: Tokenizer, max_new_tokens: int):
        self.tokenizer = tokenizer
        self.max_new_tokens = max_new_tokens
        self.template = TokenTemplate(tokenizer, MESSAGE, slots=("question",))

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        prompt = self.template.render(question=encode_text(self.tokenizer, task.question))
        request = replace(sampling, max_new_tokens=self.max_new_tokens)
        asked = await ask_once(task, roles["policy"], "single", prompt, request, self.tokenizer)
        return replace(asked, metrics={"turns": 1})  # the grading that all variants share gives the reward


def make_grade(grader: MathGrader) -> Callable[[Task, Trajectory], Awaitable[tuple[Trajectory, Record]]]:
    """Return the grading that all variants share, whatever reward their method gave."""

    async def grade(task: Task, trajectory: Trajectory) -> tuple[Trajectory, Record]:
        text = str(trajectory.log.get("answer", ""))  # a prompt that outgrew the context left none
        verdict = await grader.grade(task.question, text, task.answers)
        answer = None if verdict.parsed is None else parse_integer(verdict.parsed) or strip_latex(verdict.parsed)
        graded = replace(trajectory, reward=float(verdict.correct))
        return graded, {"answer": answer, "graded_by": verdict.by, "final": text}

    return grade


async def keep_verdict(task: Task, trajectory: Trajectory) -> tuple[Trajectory, Record]:
    """Keep the reward that the method's own judge gave: answers that no box marks agree only as whole texts."""
    text = str(trajectory.log.get("answer", "")).strip()
    return trajectory, {"answer": text or None, "graded_by": trajectory.log.get("graded_by"), "final": text}
