"""Draws the turns of the baseline `supervised`: the best route of every training task. Searches find made-up facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from agentic.toolorchestra.config import ToolOrchestraRecipe
from agentic.toolorchestra.tiny.demonstrations import RoutingDemonstration, make_up_search, write_thought
from agentic.toolorchestra.tiny.tasks import BEST
from agentic.toolorchestra.tiny.warm_start import encode
from core.config import SupervisedSection
from core.data.tasks import read_tasks
from core.text.conversation import Renderer
from core.text.tokenizer import Tokenizer
from core.train import Example, batch_by_length
from core.types import Task


def batches(
    config: SupervisedSection, recipe: ToolOrchestraRecipe, tokenizer: Tokenizer
) -> Iterator[Sequence[Example]]:
    """Yield batches of turns without end."""
    renderer, rng = Renderer(tokenizer), Random(config.seed)
    tasks = read_tasks(recipe.data.train, require_context=False)
    turns = [encode(turn, renderer) for task in tasks for turn in demonstrate(rng, task)]
    while True:
        yield from batch_by_length(rng, turns, config.batch_size)


def demonstrate(rng: Random, task: Task) -> Iterator[RoutingDemonstration]:
    """Yield the turns of the best route of a task."""
    lines: tuple[str, ...] = ()
    preference = task.metadata["preference"]
    for alias in BEST[task.metadata["kind"]][preference]:
        yield RoutingDemonstration(task, lines, write_thought(task, preference), f" {alias}")
        lines = (make_up_search(rng, task.question),)
