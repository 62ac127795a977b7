"""Draws the turns of the baseline `supervised`: whole correct trajectories of the training tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentic.memagent.config import MemAgentRecipe
from agentic.memagent.gold import AnnotatorWords, draw_gold_batches
from agentic.memagent.laptop.demonstrations import ANSWER, FACT, NEEDLE, NOTHING
from agentic.memagent.rollout import MemAgent
from core.config import SupervisedSection
from core.data.tasks import read_tasks
from core.text.tokenizer import Tokenizer
from core.train import Example

WORDS = AnnotatorWords(nothing=NOTHING, fact=FACT, answer=ANSWER, needle=NEEDLE)


def batches(config: SupervisedSection, recipe: MemAgentRecipe, tokenizer: Tokenizer) -> Iterator[Sequence[Example]]:
    """Yield batches of turns without end."""
    tasks = read_tasks(recipe.data.train, require_context=True)
    yield from draw_gold_batches(MemAgent(recipe.memagent, tokenizer), tasks, WORDS, config)
