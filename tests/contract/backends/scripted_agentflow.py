"""AgentFlow with the frozen roles, the tools and the sandbox of its tiny preset, and a planner that is now right, now
wrong, and whose expert dies on some facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from agentic.agentflow.rollout import SPEC
from agentic.agentflow.scripted_roles import ScriptedRole
from agentic.agentflow.world import ANSWER, CODER, ToyQuestion, is_result, look_up, solve
from core.config import Recipe
from core.policy.base import PolicyError
from core.types import Task
from tests.contract.backends.case import Case, load_tiny
from tests.contract.backends.serving import SLOW

DEAD = "price of boat"
UNREADABLE = ("Why?", SLOW)
"""The verifier refuses these."""

PAPER = ("algorithm.loss_agg=rollout_turn", "agentflow.planner.final.trained=false")
"""Next steps alone are trained."""
SEED = (
    "agentflow.planner.final.trained=false",
    "algorithm.loss_agg=turn",
    "agentflow.planner.plan={role: policy, max_tokens: 8, trained: true}",
)


def make_recipe(style: Sequence[str], **rollout: Any) -> dict[str, Any]:
    overrides = [
        *style,
        # A busy machine must not make a tool time out in one of two plays of the same rollout.
        "agentflow.tools.python_coder.options.sandbox.timeout_s=120",
        f"roles.generator=python:{__name__}.generator",
        # Words have more tokens here than in the preset's own vocabulary.
        *(f"agentflow.planner.{name}.max_tokens=64" for name in ("next_step", "final")),
        *(f"agentflow.roles.{name}.max_tokens=64" for name in ("executor", "verifier", "base_generator")),
    ]
    return load_tiny(SPEC, rollout, {}, *overrides)


def generator(recipe: Recipe, tokenizer: Any) -> ScriptedRole:
    def answer(query: str) -> str:
        if query == DEAD:
            raise PolicyError("unavailable", "the expert died")
        return look_up(query)

    return ScriptedRole(tokenizer, answer)


def planner(prompt: str, chance: Random) -> str:
    """Of ten steps six are right, one is malformed, one names no tool, one fails in the sandbox, one does not help."""
    kind, _, rest = prompt.partition("user\n")[2].partition("<|im_end|>")[0].removeprefix("<").partition(">")
    question, _, memory = rest.partition("<analysis>")
    if kind == "plan":
        return chance.choice((" look up", " compute, then look up", ""))
    lines = [line.partition(" : ")[2].partition(" = ") for line in memory.partition("<memory>")[2].splitlines()]
    results = {sub_goal: result for sub_goal, _, result in lines if is_result(result)}
    if kind == "final":
        return ANSWER.format(answer=chance.choice([*results.values(), "unknown"]))
    if question in UNREADABLE:
        return f" {CODER} : 1 + 1"
    tool, sub_goal = ToyQuestion.read(question).next_step(results) or (CODER, "1 + 1")
    if sub_goal == DEAD and chance.random() < 0.7:
        tool, sub_goal = CODER, "2 + 2"
    wrong = (" no step", " crystal_ball : all", f" {CODER} : 1 / 0", f" {CODER} : 2 + 2")
    return chance.choice((f" {tool} : {sub_goal}",) * 6 + wrong)


QUESTIONS = (
    "What is 37 times 48?",
    "What is the price of lamp?",
    "What is the price of lamp minus 12?",
    "Which item has number 37 times the age of boat?",
)


def make_tasks(questions: Sequence[str]) -> list[Task]:
    return [Task(f"task-{i}", question, (answer(question),)) for i, question in enumerate(questions)]


def answer(question: str) -> str:
    return list(solve(ToyQuestion.read(question)).values())[-1]


def cases() -> dict[str, Case]:
    return {
        f"agentflow-{name}": Case(
            spec=SPEC,
            recipe=partial(make_recipe, style),
            tasks=lambda count: make_tasks([QUESTIONS[i % len(QUESTIONS)] for i in range(count)]),
            faulty=[
                *make_tasks([*QUESTIONS, *(f"What is the {DEAD} plus {number}?" for number in (12, 13, 14))]),
                Task("unreadable", UNREADABLE[0], ("42",)),
            ],
            failures={"bad_request": True, "unavailable": False},
            slow=Task("slow", SLOW, ("42",)),
            quick={"question": QUESTIONS[0], "answers": [answer(QUESTIONS[0])]},
            reply=planner,
        )
        for name, style in (("paper", PAPER), ("seed", SEED))
    }
