"""Draws the warm start of the `tiny` preset: copying drills, look-up drills, then demonstrations of single turns.

No demonstration updates a memory worth keeping (demonstrations.py): GRPO learns to keep. The drills use words that the
demonstrations have in no needle, so that reading and copying do not depend on the words.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentic.memagent.chunks import split_chunks
from agentic.memagent.config import MemAgentRecipe, MemAgentWarmStart
from agentic.memagent.rollout import MemAgent
from agentic.memagent.tiny.demonstrations import (
    MemoryDemonstration,
    draw_demonstration,
    lookup_drill,
)
from agentic.memagent.tiny.words import KEYS, NOISE, VALUES
from core.text.tokenizer import Tokenizer, encode_text
from core.train import Example, batch_by_length, copying_drill

WORDS = (*KEYS, *VALUES, *NOISE)
FULL_SECTION = 90
"""Counts the words of the longest section, about a chunk of the `tiny` preset."""


def batches(config: MemAgentWarmStart, recipe: MemAgentRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield copying drills, look-up drills, then demonstrations whose sections grow to full length over the first
    third."""
    method = MemAgent(recipe.memagent, tokenizer)
    rng, size = Random(config.seed), config.batch_size
    words = [encode_text(tokenizer, f" {word}")[0] for word in WORDS]
    for _ in range(config.copy_steps):
        yield [copying_drill(rng, words) for _ in range(size)]
    for _ in range(config.lookup_steps):
        yield [_lookup(rng, tokenizer) for _ in range(size)]
    for step in range(0, config.steps, 8):
        longest = min(FULL_SECTION, 20 + round((FULL_SECTION - 20) * 3 * step / config.steps))
        turns = [draw_demonstration(rng, config.keep, (0, longest)) for _ in range(8 * size)]
        yield from batch_by_length(rng, [_encode(turn, method, tokenizer) for turn in turns], size)


def _lookup(rng: Random, tokenizer: Tokenizer) -> Example:
    prompt, completion = lookup_drill(rng)
    return encode_text(tokenizer, prompt), encode_text(tokenizer, completion)


def _encode(turn: MemoryDemonstration, method: MemAgent, tokenizer: Tokenizer) -> Example:
    problem, memory = encode_text(tokenizer, turn.question), encode_text(tokenizer, turn.memory)
    if turn.section is None:
        prompt = method.final.render(problem=problem, memory=memory)
    else:
        # Sentence by sentence, as the rollout does it: encoded as a whole, ".\n" would be another token.
        section = [i for chunk in split_chunks(tokenizer, turn.section, FULL_SECTION, "sentence") for i in chunk]
        prompt = method.update.render(problem=problem, section=section, memory=memory)
    return prompt, (*encode_text(tokenizer, turn.completion), tokenizer.eos_token_id)
