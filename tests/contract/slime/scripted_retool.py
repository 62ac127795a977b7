"""ReTool with real programs in the sandbox: right ones, wrong ones and broken ones."""

from __future__ import annotations

from random import Random
from typing import Any

from agentic.retool.rollout import SPEC
from core.policy.base import PolicyError
from core.types import Task
from tests.contract.slime.case import Case
from tests.contract.slime.serving import SLOW

REFUSED = "forbidden"


def make_recipe(**rollout: Any) -> dict[str, Any]:
    sizes = {"tasks_per_step": 4, "group_size": 4, "deadline_s": 60.0} | rollout
    # A busy machine must not make a program time out in one of two plays of the same rollout.
    section = {"context_tokens": 2000, "max_tokens": 400, "max_turns": 5, "sandbox.timeout_s": 120}
    overrides = [f"rollout.{name}={value}" for name, value in sizes.items()]
    overrides += [f"retool.{name}={value}" for name, value in section.items()]
    return SPEC.load("tiny", [*overrides, "model.max_model_len=null"]).dump()


def programmer(prompt: str, chance: Random) -> str:
    """Writes programs or answers, right in half of its answers; now and then a prompt is refused."""
    if REFUSED in prompt and chance.random() < 0.2:
        raise PolicyError("bad_request", "refused")
    programs = ("Let me see: <code>6 * 7</code> and more", "<code>print(1 // 0)</code>", "no tag </code>")
    return chance.choice((*programs, "\\boxed{42}", "It is \\boxed{ 42}.", "\\boxed{41}", "I do not know."))


def make_tasks(count: int, word: str = "price") -> list[Task]:
    return [Task(f"{word}-{i}", f"What is the {word} {i}?", ("42",)) for i in range(count)]


CASE = Case(
    spec=SPEC,
    recipe=make_recipe,
    tasks=make_tasks,
    faulty=[*make_tasks(6), *make_tasks(2, REFUSED), Task("overlong", "What? " * 2000, ("42",))],
    failures={"overlong_question": True, "bad_request": False},
    slow=Task("slow", f"What is the price, {SLOW}?", ("42",)),
    quick={"question": "What is the price?"},
    preset="paper",
    reply=programmer,
)
