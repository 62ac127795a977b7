"""Baselines of the `tiny` preset: what comes without the meaning of the words, or without programs.

| variant | what it does |
|---|---|
| no-code | the policy must answer at once |
| random-code | joins all numbers by operators drawn at random, and answers what that gives |
| best-constant | takes every word for the same operator, which is the one that answers the most training tasks |

The last two are scripted, so they copy without mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from agentic.retool.config import ReToolRecipe
from agentic.retool.rollout import ReTool, make_trajectory
from agentic.retool.tiny.demonstrations import ANSWER, write_answer, write_program
from agentic.retool.tiny.tasks import OPERATORS, Computation, generate
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import Method
from core.rollout.turns import Turns
from core.text.tokenizer import Tokenizer, encode_text
from core.types import Sampling, Task, Trajectory


class NoCode(ReTool):
    """Begins the reply with the box of the answer, so that no program can be written."""

    def __init__(self, recipe: ReToolRecipe, tokenizer: Tokenizer):
        super().__init__(recipe.retool, tokenizer)

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        opening = ANSWER.partition("{{")[0] + "{"
        prompt = self.open_conversation(task) + encode_text(self.tokenizer, opening)
        turns = Turns(replace(sampling, stop_token_ids=(self.tokenizer.eos_token_id,)))
        completion = await turns.ask(roles["policy"], "act", prompt, self.config.max_tokens)
        answer = opening + str(self.tokenizer.decode(completion.token_ids, skip_special_tokens=True))
        return make_trajectory(task, turns.recorded, [], answer, "answered")


class ScriptedProgrammer(ReTool):
    """Writes one program, whose operators `choose` draws, and answers what the interpreter shows."""

    def __init__(self, recipe: ReToolRecipe, tokenizer: Tokenizer, choose: Callable[[Random], str]):
        super().__init__(recipe.retool, tokenizer)
        self.choose = choose

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        asked, rng = Computation.read(task.question), Random(f"{task.task_id}-{sampling.seed}")
        program = Computation(asked.numbers, tuple(self.choose(rng) for _ in asked.operators))
        replies = iter((write_program(program), write_answer(program.compute())))

        def respond(prompt: tuple[int, ...], request: Sampling) -> tuple[int, ...]:
            return (*encode_text(self.tokenizer, next(replies)), self.tokenizer.eos_token_id)

        policy = ScriptedPolicy(respond, decode=self.tokenizer.decode)
        return await super().rollout(task, Roles({"policy": policy}), sampling)


def find_best_constant(count: int = 512) -> str:
    """Return the operator that answers the most training tasks if it stands for every word."""
    asked = [(Computation.read(task.question), task.answers[0]) for task in generate("train", count)]

    def count_right(operator: str) -> int:
        programs = ((Computation(each.numbers, (operator,) * len(each.operators)), answer) for each, answer in asked)
        return sum(str(program.compute()) == answer for program, answer in programs)

    return max(OPERATORS, key=count_right)


def always_the_best(recipe: ReToolRecipe, tokenizer: Tokenizer) -> ScriptedProgrammer:
    operator = find_best_constant()
    return ScriptedProgrammer(recipe, tokenizer, lambda rng: operator)


BASELINES: Mapping[str, Callable[[ReToolRecipe, Any], Method]] = {
    "no-code": NoCode,
    "random-code": lambda recipe, tokenizer: ScriptedProgrammer(recipe, tokenizer, lambda rng: rng.choice(OPERATORS)),
    "best-constant": always_the_best,
}
