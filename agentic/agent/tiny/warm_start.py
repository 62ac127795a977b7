"""Draws the warm start of the `tiny` preset: copying drills, then the turns of demonstrations (demonstrations.py)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentic.agent.config import AgentRecipe, AgentWarmStart
from agentic.agent.tiny.demonstrations import LookupDemonstration, demonstrate
from agentic.agent.tiny.world import LOOK_UP, NAMES, RELATIONS, THINGS
from core.text.conversation import Renderer
from core.text.tokenizer import Tokenizer, encode_text
from core.train import Example, batch_by_length, copying_drill


def batches(config: AgentWarmStart, recipe: AgentRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield copying drills, then demonstrations."""
    rng, size = Random(config.seed), config.batch_size
    renderer = Renderer(tokenizer, recipe.agent.template_options)
    words = [encode_text(tokenizer, f" {word}")[0] for word in (*RELATIONS, *THINGS, *NAMES)]
    for _ in range(config.copy_steps):
        yield [copying_drill(rng, words) for _ in range(size)]
    for _ in range(0, config.steps, 8):
        drawn = [turn for _ in range(4 * size) for turn in encode(demonstrate(rng), renderer)]
        yield from batch_by_length(rng, drawn, size)


def encode(shown: LookupDemonstration, renderer: Renderer) -> tuple[Example, Example]:
    """Return the two turns of a conversation, with the prompts that the gateway would make."""
    tokenizer, tools = renderer.tokenizer, [LOOK_UP.to_openai()]
    call, answer = ((*encode_text(tokenizer, text), tokenizer.eos_token_id) for text in (shown.call, shown.answer))
    asked = renderer.message("user", shown.question)
    told = [asked, renderer.sampled_message(call), renderer.message("tool", shown.result)]
    return (renderer.render([asked], tools), call), (renderer.render(told, tools), answer)
