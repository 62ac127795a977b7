"""Draws the warm start of the `tiny` preset: copying drills, then scripted turns (demonstrations.py)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentic.search_r1.config import SearchR1Recipe, SearchR1WarmStart
from agentic.search_r1.tiny.demonstrations import AimlessSearcher, MadeUpSearch, demonstrate
from agentic.search_r1.tiny.world import OF_A_PERSON, OF_A_THING, WORDS
from core.text.tokenizer import Tokenizer, encode_text
from core.train import Example, batch_by_length, copying_drill


def batches(config: SearchR1WarmStart, recipe: SearchR1Recipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield copying drills, then demonstrations."""
    rng, size = Random(config.seed), config.batch_size
    method = MadeUpSearch(recipe, tokenizer, rng)
    words = [encode_text(tokenizer, f" {word}")[0] for word in (*OF_A_THING, *OF_A_PERSON, *WORDS)]
    for _ in range(config.copy_steps):
        yield [copying_drill(rng, words) for _ in range(size)]
    for _ in range(0, config.steps, 8):
        drawn: list[Example] = []
        while len(drawn) < 8 * size:
            drawn += demonstrate(rng, method, AimlessSearcher(tokenizer, rng))
        yield from batch_by_length(rng, drawn[: 8 * size], size)
