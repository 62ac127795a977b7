"""Draws the warm start of the `tiny` preset: copying drills, then the turns of demonstrations (demonstrations.py)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from agentic.coding.config import CodingRecipe, CodingWarmStart
from agentic.coding.prompts import INSTRUCTIONS, SCHEMAS, TASK
from agentic.coding.repairs.functions import RECORDS
from agentic.coding.repairs.generate import state_problem
from agentic.coding.tiny.demonstrations import EditDemonstration, demonstrate
from agentic.coding.tools import number_lines
from core.text.conversation import Renderer
from core.text.tokenizer import Tokenizer, encode_text
from core.train import Example, batch_by_length, copying_drill


def batches(config: CodingWarmStart, recipe: CodingRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield copying drills, then demonstrations."""
    rng, size = Random(config.seed), config.batch_size
    renderer = Renderer(tokenizer)
    tools = [SCHEMAS[name].to_openai() for name in recipe.coding.tools]
    words = [encode_text(tokenizer, f" {word}")[0] for record, field in RECORDS for word in (f"{record}s", field)]
    for _ in range(config.copy_steps):
        yield [copying_drill(rng, words) for _ in range(size)]
    for _ in range(0, config.steps, 8):
        drawn: list[Example] = []
        while len(drawn) < 8 * size:
            pairs = [encode(shown, renderer, tools) for shown in demonstrate(rng)]
            # The end is always the same word, and soon learned.
            drawn += [*(call for call, _ in pairs), pairs[0][1]]
        yield from batch_by_length(rng, drawn[: 8 * size], size)


def encode(shown: EditDemonstration, renderer: Renderer, tools: list[dict[str, Any]]) -> tuple[Example, Example]:
    """Return the two turns of a conversation, with the prompts that the rollout would make."""
    tokenizer = renderer.tokenizer
    call, end = ((*encode_text(tokenizer, text), tokenizer.eos_token_id) for text in (shown.call, shown.end))
    statement = TASK.format(statement=state_problem(shown.path))
    asked = renderer.message("user", f"{statement}{INSTRUCTIONS}{shown.path}\n{number_lines(shown.text)}")
    told = [asked, renderer.sampled_message(call), renderer.message("tool", "edited")]
    return (renderer.render([asked], tools), call), (renderer.render(told, tools), end)
