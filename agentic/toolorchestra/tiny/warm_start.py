"""Draws the warm start of the `tiny` preset: scripted turns that teach a small model to read a task and write a call.

The demonstrations have the right form and show no route (demonstrations.py): GRPO learns to route.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentic.toolorchestra.config import ToolOrchestraRecipe
from agentic.toolorchestra.prompts import question_messages
from agentic.toolorchestra.tiny.demonstrations import RoutingDemonstration, draw_demonstration
from core.config import WarmStartSection
from core.text.conversation import Renderer
from core.text.tokenizer import Tokenizer, encode_text
from core.text.tool_calls import THOUGHT_END
from core.train import Example, batch_by_length


def batches(config: WarmStartSection, recipe: ToolOrchestraRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield demonstrations; there are no drills."""
    renderer = Renderer(tokenizer)
    rng, size = Random(config.seed), config.batch_size
    for _ in range(0, config.steps, 8):
        turns = [draw_demonstration(rng) for _ in range(8 * size)]
        yield from batch_by_length(rng, [encode(turn, renderer) for turn in turns], size)


def encode(turn: RoutingDemonstration, renderer: Renderer) -> Example:
    """Encode a turn just as the rollout asks the orchestrator."""
    prompt = renderer.render(question_messages("compact", renderer, turn.task, "", turn.lines, None))
    tokenizer = renderer.tokenizer
    thought, call = encode_text(tokenizer, turn.thought), encode_text(tokenizer, turn.call)
    return prompt, (*thought, tokenizer.get_added_vocab()[THOUGHT_END], *call, tokenizer.eos_token_id)
