"""Baselines of the `tiny` preset: an agent that edits at random, and one that makes the best constant change.

| variant | what it does |
|---|---|
| random-edit | puts another sign into the comparison at random, as the demonstrations of the warm start do |
| best-constant | puts the same sign into every comparison; each of the four repairs a quarter of the test tasks |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from agentic.coding.config import CodingRecipe
from agentic.coding.repairs.mutations import draw_other_sign, put_sign
from agentic.coding.rollout import CodingAgent
from agentic.coding.tiny.demonstrations import DONE, write_edit
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import Method
from core.text.tokenizer import Tokenizer, encode_text
from core.types import Sampling, Task, Trajectory


class ScriptedEditor(CodingAgent):
    """Makes one edit, which `choose` takes from the text before, and ends."""

    def __init__(self, recipe: CodingRecipe, tokenizer: Tokenizer, choose: Callable[[str, Random], str]):
        super().__init__(recipe, tokenizer)
        self.choose = choose

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        path, text = next(iter(task.metadata["repository"].items()))
        edited = self.choose(text, Random(f"{task.task_id}-{sampling.seed}"))
        # The text ends in a newline, which an edited one lacks.
        replies = [write_edit(path, text, edited)] if edited.splitlines() != text.splitlines() else []
        left = iter([*replies, DONE])

        def respond(prompt: tuple[int, ...], request: Sampling) -> tuple[int, ...]:
            return (*encode_text(self.tokenizer, next(left)), self.tokenizer.eos_token_id)

        return await super().rollout(task, Roles({"policy": ScriptedPolicy(respond)}), sampling)


CONSTANT_SIGN = ">="

BASELINES: Mapping[str, Callable[[CodingRecipe, Any], Method]] = {
    "random-edit": lambda recipe, tokenizer: ScriptedEditor(
        recipe, tokenizer, lambda text, rng: draw_other_sign(rng, text).source
    ),
    "best-constant": lambda recipe, tokenizer: ScriptedEditor(
        recipe, tokenizer, lambda text, rng: put_sign(text, CONSTANT_SIGN)
    ),
}
