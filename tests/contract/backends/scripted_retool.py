"""ReTool with real programs in the sandbox, in each format: right ones, wrong ones and broken ones."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from agentic.retool.rollout import SPEC
from core.types import Task
from tests.contract.backends.case import REFUSED, Case, load_tiny, refuse_some
from tests.contract.backends.serving import SLOW


def make_recipe(form: str = "tags", **rollout: Any) -> dict[str, Any]:
    # A busy machine must not make a program time out in one of two plays of the same rollout.
    section = {"context_tokens": 2000, "max_tokens": 400, "max_turns": 5, "sandbox.timeout_s": 120, "format": form}
    return load_tiny(SPEC, rollout, section, "model.max_model_len=null")


def call(**arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'python', 'arguments': arguments})}</tool_call>"


PROGRAMS = {
    "tags": ("Let me see: <code>6 * 7</code> and more", "<code>print(1 // 0)</code>", "no tag </code>"),
    "fences": ("See:\n```python\n6 * 7\n```\n```output\n41", "```py\nprint(1 // 0)\n```\nSo.", "no fence ```output"),
    "calls": (f"See: {call(code='6 * 7')}", call(code="print(1 // 0)") * 2, call(program="7"), "<tool_call>7"),
}


def programmer(prompt: str, chance: Random, form: str = "tags") -> str:
    """Writes programs or answers, right in half of its answers; now and then a prompt is refused."""
    refuse_some(prompt, chance)
    return chance.choice((*PROGRAMS[form], "\\boxed{42}", "It is \\boxed{ 42}.", "\\boxed{41}", "I do not know."))


def make_tasks(count: int, word: str = "price") -> list[Task]:
    return [Task(f"{word}-{i}", f"What is the {word} {i}?", ("42",)) for i in range(count)]


CASE = Case(
    spec=SPEC,
    recipe=make_recipe,
    tasks=make_tasks,
    faulty=[*make_tasks(6), *make_tasks(4, REFUSED), Task("overlong", "What? " * 2000, ("42",))],
    failures={"overlong_question": True, "bad_request": False},
    slow=Task("slow", f"What is the price, {SLOW}?", ("42",)),
    quick={"question": "What is the price?"},
    preset="paper",
    reply=programmer,
)


def cases() -> dict[str, Case]:
    others = ("fences", "calls")
    return {
        "retool": CASE,
        **{
            f"retool-{form}": replace(CASE, recipe=partial(make_recipe, form), reply=partial(programmer, form=form))
            for form in others
        },
    }
