"""Draws the warm start of the `tiny` preset: drills in copying and looking up, then scripted turns (demonstrations.py).

The drills are short, so the policy learns in seconds to find what is said of an animal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

from agentic.compaction.config import CompactionRecipe, CompactionWarmStart
from agentic.compaction.prompts import NEXT
from agentic.compaction.rollout import CompactingReader, build
from agentic.compaction.tiny.demonstrations import AimlessAnnotator, write_facts
from agentic.compaction.tiny.tasks import draw_task
from agentic.compaction.tiny.words import ANIMALS, THINGS
from core.policy.base import Roles
from core.text.tokenizer import Tokenizer, encode_text
from core.train import Example, batch_by_length, copying_drill
from core.types import Sampling

PAGES = (1, 6)
"""Bounds the pages of a demonstration, which may be shorter than the tasks."""


def batches(config: CompactionWarmStart, recipe: CompactionRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield copying drills, look-up drills, then demonstrations."""
    method = build(recipe, tokenizer)
    rng, size = Random(config.seed), config.batch_size
    words = [encode_text(tokenizer, f" {word}")[0] for word in (*ANIMALS, *THINGS)]
    for _ in range(config.copy_steps):
        yield [copying_drill(rng, words) for _ in range(size)]
    for _ in range(config.lookup_steps):
        yield [_lookup_drill(rng, tokenizer) for _ in range(size)]
    for _ in range(0, config.steps, 8):
        drawn: list[Example] = []
        while len(drawn) < 8 * size:
            drawn += demonstrate(rng, method, config.guess)
        yield from batch_by_length(rng, drawn[: 8 * size], size)


def _lookup_drill(rng: Random, tokenizer: Tokenizer) -> Example:
    """Draw one to eight facts as a prompt. The completion repeats them in any order, with up to two unknown ones."""
    animals = rng.sample(ANIMALS, rng.randint(1, 8))
    known = {animal: rng.choice(THINGS) for animal in animals}
    asked = [*animals, *(animal for animal in rng.sample(ANIMALS, rng.randint(0, 2)) if animal not in known)]
    prompt, completion = write_facts(animals, known), write_facts(rng.sample(asked, len(asked)), known)
    return encode_text(tokenizer, prompt), encode_text(tokenizer, completion)


def demonstrate(rng: Random, method: CompactingReader, guess: float) -> list[Example]:
    """Run the method with the annotator on a new task. Return his summaries and answer without guesses, and a call."""
    annotator = AimlessAnnotator(method.tokenizer, rng, guess)
    task = draw_task(rng, "demonstration", PAGES)
    trajectory = asyncio.run(method.rollout(task, Roles({"policy": annotator}), Sampling()))
    call = encode_text(method.tokenizer, NEXT)
    turns = [
        (turn.prompt_ids, turn.completion.token_ids)
        for turn, guessed in zip(trajectory.turns, annotator.guessed, strict=True)
        if not guessed
    ]
    calls = [turn for turn in turns if turn[1][:-1] == call]
    return [*(turn for turn in turns if turn[1][:-1] != call), rng.choice(calls)]
