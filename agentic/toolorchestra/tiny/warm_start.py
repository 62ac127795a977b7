"""Cold start of the `tiny` preset: a small model learns to read a task and to write a call, from scripted turns.

The demonstrations read and write well and route by habit (see demonstrations.py), so that what GRPO adds is visible:
routing.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from agentic.toolorchestra.config import ToolOrchestraRecipe
from agentic.toolorchestra.prompts import question
from agentic.toolorchestra.tiny.demonstrations import Annotator, Demonstration, demonstrate
from core.config import WarmStartSection
from core.engine.warm_start import Example, batch_by_length
from core.text.conversation import Renderer
from core.text.tokenizer import encode_text
from core.text.tool_calls import THOUGHT_END


def batches(config: WarmStartSection, recipe: ToolOrchestraRecipe, tokenizer: Any) -> Iterator[list[Example]]:
    """Demonstrations only."""
    renderer = Renderer(tokenizer)
    rng, size, annotator = Random(config.seed), config.batch_size, Annotator()
    for _ in range(0, config.steps, 8):
        drawn: list[Example] = []
        while len(drawn) < 8 * size:
            drawn += [_encode(turn, renderer) for turn in demonstrate(rng, annotator)]
        yield from batch_by_length(rng, drawn[: 8 * size], size)


def _encode(turn: Demonstration, renderer: Renderer) -> Example:
    """As the rollout asks the orchestrator."""
    prompt = renderer.render(question("compact", renderer, turn.task, "", turn.lines, None))
    tokenizer = renderer.tokenizer
    thought, call = encode_text(tokenizer, turn.thought), encode_text(tokenizer, turn.call)
    return prompt, (*thought, tokenizer.convert_tokens_to_ids(THOUGHT_END), *call, tokenizer.eos_token_id)
