"""RLM with real programs in the sandbox, which ask the policy on parts of their document, and broken ones."""

from __future__ import annotations

from random import Random
from typing import Any

from agentic.rlm.rollout import SPEC
from core.types import Task
from tests.contract.backends.case import REFUSED, Case, load_tiny, refuse_some
from tests.contract.backends.serving import SLOW

PROGRAMS = (
    "print(llm_query(question + context[:40]))",
    "print(*llm_query_batched([question + part for part in context.split('.')]))",
    "print(1 // 0)",
    "FINAL(42)",
)


def make_recipe(**rollout: Any) -> dict[str, Any]:
    # A busy machine must not make a program time out in one of two plays of the same rollout.
    section = {"context_tokens": 2000, "max_tokens": 400, "subcall_context_tokens": 1000, "max_subcall_tokens": 100}
    return load_tiny(SPEC, rollout, section, "rlm.sandbox.timeout_s=120", "model.max_model_len=null")


def programmer(prompt: str, chance: Random) -> str:
    """Writes programs or answers, right in a third of its answers; now and then a prompt is refused."""
    refuse_some(prompt, chance)
    if chance.random() < 0.5:
        return f"I look.\n```repl\n{chance.choice(PROGRAMS)}\n```"
    return chance.choice(("\\boxed{42}", "It is \\boxed{41}.", "I do not know."))


def make_tasks(count: int, word: str = "price") -> list[Task]:
    return [
        Task(f"{word}-{i}", f"What is the {word} {i}?", ("42",), "It is high. " * (1 + i % 4)) for i in range(count)
    ]


CASE = Case(
    spec=SPEC,
    recipe=make_recipe,
    tasks=make_tasks,
    faulty=[*make_tasks(6), *make_tasks(4, REFUSED), Task("empty", "What?", ("42",), " ")],
    failures={"no_context": True, "bad_request": False},
    slow=Task("slow", f"What is the price, {SLOW}?", ("42",), "It is high."),
    quick={"question": "What is the price?", "context": "It is high."},
    preset="paper",
    reply=programmer,
)
