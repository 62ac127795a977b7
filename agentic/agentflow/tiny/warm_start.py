"""Cold start of the `tiny` preset: a small model learns copying, then the single turns of scripted rollouts.

The demonstrations write well and decide badly (see demonstrations.py), so that what GRPO adds is visible: deciding.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from agentic.agentflow.config import AgentFlowRecipe, DrillsAndDemonstrations
from agentic.agentflow.rollout import AgentFlow, build
from agentic.agentflow.tiny.demonstrations import Annotator, Demonstration, demonstrate
from agentic.agentflow.tiny.world import ATTRIBUTES, ENTITIES
from core.engine.warm_start import Example, batch_by_length
from core.text.tokenizer import encode_text


def batches(config: DrillsAndDemonstrations, recipe: AgentFlowRecipe, tokenizer: Any) -> Iterator[list[Example]]:
    """Copying drills, then demonstrations."""
    method = build(recipe, tokenizer)
    rng, size = Random(config.seed), config.batch_size
    words = [encode_text(tokenizer, f" {word}")[0] for word in (*ATTRIBUTES, *ENTITIES)]
    digits = encode_text(tokenizer, "0123456789")
    for _ in range(config.copy_steps):
        yield [_copying(rng, (*words, *digits * 4)) for _ in range(size)]
    annotator = Annotator(config.wrong_tool, config.skip, config.malformed)
    for _ in range(0, config.steps, 8):
        drawn: list[Example] = []
        while len(drawn) < 8 * size:
            turns = demonstrate(rng, annotator, method.config.max_steps)
            drawn += [_encode(turn, method, tokenizer) for turn in turns]
        yield from batch_by_length(rng, drawn[: 8 * size], size)


def _copying(rng: Random, token_ids: tuple[int, ...]) -> Example:
    sequence = tuple(rng.choices(token_ids, k=rng.randint(8, 24)))
    return sequence, sequence


def _encode(turn: Demonstration, method: AgentFlow, tokenizer: Any) -> Example:
    """As the rollout asks the role."""
    prompt = method.voices[turn.role].prompt({"question": turn.question, "analysis": "", "memory": turn.memory})
    return prompt, (*encode_text(tokenizer, turn.completion), tokenizer.eos_token_id)
