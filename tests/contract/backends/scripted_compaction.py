"""Compaction with pages so long that the history is summed up now and then: rollouts of one to several rows."""

from __future__ import annotations

from random import Random
from typing import Any

from agentic.compaction.rollout import NEXT, REQUEST, SPEC
from core.types import Task
from tests.contract.backends.case import REFUSED, Case, load_tiny, refuse_some
from tests.contract.backends.serving import SLOW

PAGE = "The grass is green. " * 12


def make_recipe(**rollout: Any) -> dict[str, Any]:
    section = {"context_tokens": 400, "max_action_tokens": 40, "max_summary_tokens": 40}
    return load_tiny(SPEC, rollout, section, "model.max_model_len=null")


def reader(prompt: str, chance: Random) -> str:
    """Reads on in most of its turns, and is right in half of its answers; now and then a prompt is refused."""
    refuse_some(prompt, chance, 0.1)
    if REQUEST in prompt.rpartition("user\n")[2]:
        return chance.choice(("It was green.", "The price is 42."))
    return chance.choice((*[NEXT] * 6, "\\boxed{42}", "I do not know."))


def make_tasks(count: int, word: str = "price") -> list[Task]:
    pages = [f"{PAGE}\n\n" * (2 + i % 4) for i in range(count)]
    return [Task(f"{word}-{i}", f"What is the {word} {i}?", ("42",), pages[i]) for i in range(count)]


CASE = Case(
    spec=SPEC,
    recipe=make_recipe,
    tasks=make_tasks,
    faulty=[*make_tasks(6), *make_tasks(4, REFUSED), Task("overlong", "What?", ("42",), PAGE * 9)],
    failures={"overlong_page": False, "bad_request": False},
    slow=Task("slow", f"What is the price, {SLOW}?", ("42",), PAGE),
    quick={"question": "What is the price?", "context": PAGE},
    preset=None,
    reply=reader,
)
