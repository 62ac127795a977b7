"""CodeScout with real commands in the sandbox: right answers, wrong ones, and turns that end without one.

A rollout that meets its limit of turns is not trained, and counts in its group.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from agentic.codescout.prompts import FINISH
from agentic.codescout.rollout import SPEC
from agentic.codescout.world import WORLD, write_answer, write_call, write_search
from core.types import Task
from tests.contract.backends.case import REFUSED, Case, load_tiny, refuse_some
from tests.contract.backends.serving import SLOW

DRAWN = WORLD.draw_tasks("train", 8)


def make_recipe(**rollout: Any) -> dict[str, Any]:
    # Words have more tokens here than in the preset's own vocabulary.
    section = {"max_turns": 4, "max_tokens": 400, "context_tokens": 4000, "command_timeout_s": 200}
    # A busy machine must not make a rollout fail in one of two plays of the same one.
    return load_tiny(SPEC, {"deadline_s": 280.0} | rollout, section, "model.max_model_len=null")


def scout(prompt: str, chance: Random) -> str:
    """Searches in half of its turns, and answers right in a quarter; now and then a prompt is refused."""
    refuse_some(prompt, chance)
    task = next(task for task in DRAWN if task.question in prompt)
    path, _, function = task.answers[0].partition(":")
    other = chance.choice(sorted(task.metadata["repository"]))
    return chance.choice(
        [
            *[write_search(f"grep -B1 total {other}")] * 4,
            write_search("ls; false") * 2,
            "<tool_call>{",
            *[write_answer(path, function)] * 3,
            write_call(FINISH.name, locations=[{"file": path}]),
            f"{write_answer(path, function)} Or not.",
            "Nobody knows.",
        ]
    )


def make_tasks(count: int, word: str = "") -> list[Task]:
    return [make_task(f"task-{i}", DRAWN[i % len(DRAWN)], word) for i in range(count)]


def make_task(name: str, drawn: Task, word: str = "") -> Task:
    return replace(drawn, task_id=name, question=f"{drawn.question} {word}".strip())


BROKEN = make_task("bad", DRAWN[0])
CASE = Case(
    spec=SPEC,
    recipe=make_recipe,
    tasks=make_tasks,
    faulty=[*make_tasks(6), *make_tasks(3, REFUSED), replace(BROKEN, metadata={**BROKEN.metadata, "file_changes": []})],
    failures={"bad_task": True, "bad_request": False},
    slow=make_task("slow", DRAWN[0], SLOW),
    quick={"question": DRAWN[0].question},
    preset="paper",
    reply=scout,
)
