"""Draws the warm start of the `tiny` preset: copying drills, then the turns of demonstrations (demonstrations.py)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentic.retool.config import ReToolRecipe, ReToolWarmStart
from agentic.retool.prompts import INTERPRETER
from agentic.retool.tiny.demonstrations import ReToolDemonstration, demonstrate
from agentic.retool.tiny.tasks import MEANINGS
from core.text.conversation import Renderer
from core.text.tokenizer import Tokenizer, encode_text
from core.train import Example, batch_by_length, copying_drill


def batches(config: ReToolWarmStart, recipe: ReToolRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield copying drills, then demonstrations."""
    rng, size = Random(config.seed), config.batch_size
    renderer = Renderer(tokenizer)
    words = [encode_text(tokenizer, f" {word}")[0] for word in MEANINGS]
    digits = encode_text(tokenizer, "0123456789")
    for _ in range(config.copy_steps):
        yield [copying_drill(rng, (*words, *digits * 4)) for _ in range(size)]
    for _ in range(0, config.steps, 8):
        drawn: list[Example] = []
        while len(drawn) < 8 * size:
            drawn += encode(demonstrate(rng, config.answer_at_once), renderer)
        yield from batch_by_length(rng, drawn[: 8 * size], size)


def encode(shown: ReToolDemonstration, renderer: Renderer) -> list[Example]:
    """Return the turns of a conversation, with the prompts that the rollout would make."""
    tokenizer, turns = renderer.tokenizer, []
    prompt = renderer.render([renderer.message("user", shown.question)])
    for program, printed in shown.programs:
        written = encode_text(tokenizer, program)
        turns.append((prompt, written))
        prompt += written + encode_text(tokenizer, INTERPRETER.format(output=printed))
    return [*turns, (prompt, (*encode_text(tokenizer, shown.answer), tokenizer.eos_token_id))]
