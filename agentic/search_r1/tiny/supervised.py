"""Draws the turns of the baseline `supervised`: right searches and answers on new questions. Passages are made up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from random import Random

from agentic.search_r1.config import SearchR1Recipe
from agentic.search_r1.tiny.demonstrations import ANSWER, SEARCH, MadeUpSearch, Searcher, demonstrate
from agentic.search_r1.tiny.tasks import HOME, OWNER
from core.config import SupervisedSection
from core.text.tokenizer import Tokenizer
from core.train import Example, batch_by_length


def batches(config: SupervisedSection, recipe: SearchR1Recipe, tokenizer: Tokenizer) -> Iterator[Sequence[Example]]:
    """Yield batches of turns without end."""
    rng, size = Random(config.seed), config.batch_size
    method, searcher = MadeUpSearch(recipe, tokenizer, rng), Searcher(tokenizer, write_right_turn)
    while True:
        drawn: list[Example] = []
        while len(drawn) < 8 * size:
            drawn += demonstrate(rng, method, searcher)
        yield from batch_by_length(rng, drawn[: 8 * size], size)


def write_right_turn(prompt: str) -> str:
    """Write the right turn after a prompt, from this text alone: the first passage is that of the query."""
    question, *found = prompt.split("<information>")
    if not found:
        return SEARCH.format(_read(rf"{OWNER} of the (\w+ \w+)", question))
    owner = _read(rf"{OWNER} (\w+ \w+)", found[0])
    if HOME not in question:
        return ANSWER.format(owner)
    return SEARCH.format(owner) if len(found) == 1 else ANSWER.format(_read(rf"{HOME} (\w+)", found[1]))


def _read(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, "the passages of MadeUpSearch have every fact"
    return match[1]
