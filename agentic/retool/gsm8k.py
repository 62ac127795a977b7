"""Makes demonstrations of GSM8K's annotated solutions, for a real model that computes in its head (preset `desk`).

A solution marks its computations: `Tom has 2*3=<<2*3=6>>6 apples.` The annotator writes each sentence as a comment, and
below it its computations as lines of a program, where the result of an earlier line is that line's variable. He prints
the last one and boxes what is right. So he shows how to think in a program, and leaves all computing to it. His
rollouts are real: the sandbox runs the program, and a rollout without a reward is left out.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from string import ascii_lowercase

from agentic.retool.config import ReToolRecipe
from agentic.retool.rollout import ReTool
from core.config import RecipeError
from core.data.tasks import read_tasks
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.text.programs import OUTPUT
from core.text.tokenizer import Tokenizer
from core.types import Sampling, Task
from core.worlds import Example, World, encode_turn

_COMPUTED = re.compile(r"(?:(?<!\w)[-+*/x×().,\d\s$%]*=)?[\s$]*<<([-+*/().\d\s]+)=([.\d]+)>>[\d.,]*(?<![.,])")
"""Matches a computation as it stands in a sentence, its annotation, and its result behind it."""
_NUMBER = re.compile(r"(?<![\w.,])[\d.,]*\d(?!\w)")
AT_ONCE = 64
"""Says how many rollouts are played before the first is shown; a method's processes start once for all of them."""


def write_program(task: Task) -> str | None:
    """Return the program of a task's solution, or None if it has no computations or more than there are letters."""
    solution = str(task.metadata.get("solution", "")).partition("\n####")[0]
    given, letters = set(_NUMBER.findall(task.question)), iter(ascii_lowercase)
    known: dict[str, str] = {}
    lines, name = [], ""

    def use_names(text: str) -> str:
        return _NUMBER.sub(lambda number: known.get(number[0].replace(",", ""), number[0]), text)

    for sentence in solution.splitlines():
        computed: dict[str, str] = {}
        for expression, result in _COMPUTED.findall(sentence):
            if not (name := next(letters, "")):
                return None
            computed[name] = use_names(expression).strip()
            if result not in given:  # such a number may as well be the question's
                known[result] = name
        names = iter(computed)
        said = use_names(_COMPUTED.sub(lambda _, names=names: f" {next(names)}", sentence))  # type: ignore[misc]
        lines += [f"# {' '.join(said.split())}", *(" = ".join(line) for line in computed.items())]
    return "\n".join([*lines, f"print({name})"]) if name else None


def make_annotator(tokenizer: Tokenizer, task: Task) -> ScriptedPolicy:
    """Return a policy that writes the program, then the answer. The turn stops where the output is to follow."""
    replies = iter((f"```python\n{write_program(task)}\n```\n{OUTPUT}", f"\\boxed{{{task.answers[0]}}}"))
    return ScriptedPolicy(lambda *_: encode_turn(tokenizer, next(replies)), decode=tokenizer.decode)


async def play(recipe: ReToolRecipe, tokenizer: Tokenizer, tasks: Iterable[Task]) -> list[list[Example]]:
    """Return the turns of the annotator's rewarded rollouts.

    Raises:
        RecipeError: none is rewarded.
    """
    method = ReTool(recipe, tokenizer)
    try:
        roles = ((task, Roles({"policy": make_annotator(tokenizer, task)})) for task in tasks)
        rollouts = [await method.rollout(task, played, Sampling()) for task, played in roles]
    finally:
        await method.close()
    rewarded = [rollout for rollout in rollouts if rollout.reward == 1]
    if not rewarded:
        raise RecipeError(f"data.train: of {len(rollouts)} solutions as programs none prints the answer of its task")
    return [[(turn.prompt_ids, turn.completion.token_ids) for turn in rollout.turns] for rollout in rewarded]


def demonstrate(rng: Random, recipe: ReToolRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield rewarded rollouts of training tasks drawn at random."""
    tasks = choose_tasks(recipe, read_tasks(recipe.data.train, require_context=False))
    while True:
        yield from asyncio.run(play(recipe, tokenizer, rng.choices(tasks, k=AT_ONCE)))


def solve(rng: Random, recipe: ReToolRecipe, tokenizer: Tokenizer, tasks: Sequence[Task]) -> Iterator[Example]:
    """Yield the turns of the rewarded rollouts, for the supervised baseline."""
    for turns in asyncio.run(play(recipe, tokenizer, choose_tasks(recipe, tasks))):
        yield from turns


def choose_tasks(recipe: ReToolRecipe, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks whose solution can be written as a program.

    Raises:
        RecipeError: there is none, or the policy would not read fences.
    """
    if recipe.retool.format != "fences":
        raise RecipeError("retool.format: the demonstrations have fences. Fix: take `fences`, or `warm_start: null`")
    if not (chosen := [task for task in tasks if write_program(task)]):
        raise RecipeError(
            "data.train: no task has a solution with annotated computations (`metadata.solution`). Fix: train on tasks "
            "of `tokentrue data download gsm8k`, or set `warm_start: null`"
        )
    return chosen


WORLD = World(demonstrate=demonstrate, in_order=True, solve=solve)
