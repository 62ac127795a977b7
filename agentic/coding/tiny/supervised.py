"""Draws the turns of the baseline `supervised`: right repairs of the training tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from agentic.coding.config import CodingRecipe
from agentic.coding.prompts import SCHEMAS
from agentic.coding.repairs.mutations import put_sign
from agentic.coding.tiny.demonstrations import EditDemonstration, write_turn
from agentic.coding.tiny.warm_start import encode
from core.config import SupervisedSection
from core.data.tasks import read_tasks
from core.text.conversation import Renderer
from core.text.tokenizer import Tokenizer
from core.train import Example, batch_by_length
from core.types import Task


def batches(config: SupervisedSection, recipe: CodingRecipe, tokenizer: Tokenizer) -> Iterator[Sequence[Example]]:
    """Yield batches of turns without end."""
    renderer, rng = Renderer(tokenizer), Random(config.seed)
    tools = [SCHEMAS[name].to_openai() for name in recipe.coding.tools]
    turns = [
        turn
        for task in read_tasks(recipe.data.train, require_context=False)
        for turn in encode(solve(task), renderer, tools)
    ]
    while True:
        yield from batch_by_length(rng, turns, config.batch_size)


def solve(task: Task) -> EditDemonstration:
    """Write the right repair; `kind` is the sign that was right."""
    path, text = next(iter(task.metadata["repository"].items()))
    return EditDemonstration(path, text, write_turn(path, text, put_sign(text, task.metadata["kind"])))
