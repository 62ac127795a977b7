"""Draws the cold start of the `laptop` preset from the documents of `data.train` (demonstrations.py)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentic.memagent.config import MemAgentRecipe, MemAgentWarmStart
from agentic.memagent.laptop.demonstrations import draw_example
from agentic.memagent.rollout import MemAgent
from core.data.tasks import read_tasks
from core.text.tokenizer import Tokenizer
from core.train import Example


def batches(config: MemAgentWarmStart, recipe: MemAgentRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield batches of single turns on documents that GRPO will see too, but with questions of their own."""
    method = MemAgent(recipe.memagent, tokenizer)
    tasks = read_tasks(recipe.data.train, require_context=True)
    rng = Random(config.seed)
    for _ in range(config.steps):
        yield [draw_example(rng, rng.choice(tasks), method, tokenizer) for _ in range(config.batch_size)]
