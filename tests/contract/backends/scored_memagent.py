"""MemAgent with a reward that an untrained model earns now and then, so that groups have a signal; and its faults.

A question with the word `raises` raises in the reward, one with `half` fails for every other rollout.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agentic.memagent.config import PRESETS, MemAgentRecipe
from agentic.memagent.rollout import MemAgent
from core.rollout.method import MethodSpec, RolloutError
from core.types import Task, Trajectory, Turn, derive_seed
from tests.contract.backends.case import Case, load_tiny

SENTENCE = " The grass is green."


class ScoredMemAgent(MemAgent):
    def make_trajectory(self, task: Task, turns: list[Turn], answer: str, left_out: int) -> Trajectory:
        """Reward 0 or 1, drawn by what was sampled."""
        sampled = derive_seed(*(turn.completion.token_ids for turn in turns))
        if "raises" in task.question:
            raise RuntimeError("the reward is broken")
        if "half" in task.question and sampled % 2:
            raise RolloutError("half", "every other one fails")
        trajectory = super().make_trajectory(task, turns, answer, left_out)
        return replace(trajectory, reward=float(sampled // 2 % 2) if "easy" not in task.question else 1.0)


def build(recipe: MemAgentRecipe, tokenizer: Any) -> ScoredMemAgent:
    return ScoredMemAgent(recipe.memagent, tokenizer)


SPEC = MethodSpec("memagent", MemAgentRecipe, PRESETS, build)


def make_recipe(**rollout: Any) -> dict[str, Any]:
    """The tiny preset with short turns and uneven documents."""
    section = {"chunk_tokens": 7, "max_memory_tokens": 8, "max_final_tokens": 8}
    return load_tiny(SPEC, {"temperature": 1.5} | rollout, section)


def make_tasks(count: int, *words: str) -> list[Task]:
    """Tasks of 1 to 4 chunks, again and again; `words` go into the questions in turn."""
    return [
        Task(f"task-{i}", f"Which {words[i % len(words)] if words else ''}?", ("acorn",), SENTENCE * (1 + i % 4))
        for i in range(count)
    ]


FAULTY = make_tasks(6, "one", "half", "one", "raises", "one", "one")
FAULTY[4] = replace(FAULTY[4], context="")

CASE = Case(
    spec=SPEC,
    recipe=make_recipe,
    tasks=lambda count: make_tasks(count, "easy", "one"),
    faulty=FAULTY,
    failures={"exception_RuntimeError": True, "no_context": True, "half": False},
    slow=Task("slow", "Which one?", ("acorn",), SENTENCE * 60),
    quick={"context": SENTENCE},
)
