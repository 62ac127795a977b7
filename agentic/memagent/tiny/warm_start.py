"""Cold start of the `tiny` preset: a small model learns copying, looking up, then single turns, from scripts.

The demonstrations read well and keep badly (see demonstrations.py), so that what GRPO adds is visible: keeping.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from agentic.memagent.chunks import split_chunks
from agentic.memagent.config import DrillsAndDemonstrations, MemAgentRecipe
from agentic.memagent.rollout import MemAgent
from agentic.memagent.tiny.demonstrations import Annotator, Demonstration, copying_drill, demonstration, lookup_drill
from agentic.memagent.tiny.words import KEYS, VALUES
from core.engine.warm_start import Example, batch_by_length
from core.text.tokenizer import encode_text

FULL_SECTION = 90
"""Words of the longest section, about a chunk of the `tiny` preset."""


def batches(config: DrillsAndDemonstrations, recipe: MemAgentRecipe, tokenizer: Any) -> Iterator[list[Example]]:
    """Copying drills, lookup drills, then demonstrations whose sections grow to full length over the first third."""
    method = MemAgent(recipe.memagent, tokenizer)
    rng, size = Random(config.seed), config.batch_size
    words = [encode_text(tokenizer, f" {word}")[0] for word in (*KEYS, *VALUES)]
    for _ in range(config.copy_steps):
        yield [_copying(rng, words) for _ in range(size)]
    for _ in range(config.lookup_steps):
        yield [_lookup(rng, tokenizer) for _ in range(size)]
    annotator = Annotator(config.forget, config.distract)
    for step in range(0, config.steps, 8):
        longest = min(FULL_SECTION, 20 + round((FULL_SECTION - 20) * 3 * step / config.steps))
        drawn = [_encode(demonstration(rng, annotator, (0, longest)), method, tokenizer) for _ in range(8 * size)]
        yield from batch_by_length(rng, drawn, size)


def _copying(rng: Random, token_ids: list[int]) -> Example:
    prompt, completion = copying_drill(rng, token_ids, length=(8, 24))
    return tuple(prompt), tuple(completion)


def _lookup(rng: Random, tokenizer: Any) -> Example:
    prompt, completion = lookup_drill(rng)
    return encode_text(tokenizer, prompt), encode_text(tokenizer, completion)


def _encode(turn: Demonstration, method: MemAgent, tokenizer: Any) -> Example:
    problem, memory = encode_text(tokenizer, turn.question), encode_text(tokenizer, turn.memory)
    if turn.section is None:
        prompt = method.final.render(problem=problem, memory=memory)
    else:
        # Sentence by sentence, as the rollout does it: encoded as a whole, ".\n" would be another token.
        section = [i for chunk in split_chunks(tokenizer, turn.section, FULL_SECTION, "sentence") for i in chunk]
        prompt = method.update.render(problem=problem, section=section, memory=memory)
    return prompt, (*encode_text(tokenizer, turn.completion), tokenizer.eos_token_id)
