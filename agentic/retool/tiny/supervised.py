"""Draws the turns of the baseline `supervised`: whole right conversations on the training tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from agentic.retool.config import ReToolRecipe
from agentic.retool.tiny.demonstrations import ReToolDemonstration, write_answer, write_program
from agentic.retool.tiny.tasks import Computation
from agentic.retool.tiny.warm_start import encode
from core.config import SupervisedSection
from core.data.tasks import read_tasks
from core.text.conversation import Renderer
from core.text.tokenizer import Tokenizer
from core.train import Example, batch_by_length


def batches(config: SupervisedSection, recipe: ReToolRecipe, tokenizer: Tokenizer) -> Iterator[Sequence[Example]]:
    """Yield batches of turns without end."""
    renderer, rng = Renderer(tokenizer), Random(config.seed)
    tasks = read_tasks(recipe.data.train, require_context=False)
    turns = [turn for task in tasks for turn in encode(solve(task.question), renderer)]
    while True:
        yield from batch_by_length(rng, turns, config.batch_size)


def solve(question: str) -> ReToolDemonstration:
    """Write the right conversation: one program, and its output as the answer."""
    program = Computation.read(question).translate()
    value = program.compute()
    return ReToolDemonstration(question, ((write_program(program), str(value)),), write_answer(value))
