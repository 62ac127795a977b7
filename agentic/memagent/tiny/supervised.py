"""Draws the turns of the baseline `supervised`: whole correct trajectories of the training tasks, in tiny's words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentic.memagent.config import MemAgentRecipe
from agentic.memagent.gold import AnnotatorWords, draw_gold_batches
from agentic.memagent.rollout import MemAgent
from agentic.memagent.tiny.demonstrations import FACT, UNKNOWN
from agentic.memagent.tiny.start_model import ANSWER, NEEDLE
from core.config import SupervisedSection
from core.data.tasks import read_tasks
from core.text.tokenizer import Tokenizer
from core.train import Example

WORDS = AnnotatorWords(nothing=FACT.format(key="{key}", value=UNKNOWN), fact=FACT, answer=ANSWER, needle=NEEDLE)


def batches(config: SupervisedSection, recipe: MemAgentRecipe, tokenizer: Tokenizer) -> Iterator[Sequence[Example]]:
    """Yield batches of turns without end."""
    tasks = read_tasks(recipe.data.train, require_context=True)
    yield from draw_gold_batches(MemAgent(recipe.memagent, tokenizer), tasks, WORDS, config)
