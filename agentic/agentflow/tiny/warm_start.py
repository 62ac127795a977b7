"""Draws the warm start of the `tiny` preset: copying drills, then the single turns of scripted rollouts.

The demonstrations write well and decide badly (demonstrations.py), so that a reader sees what GRPO adds: it decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from agentic.agentflow.config import AgentFlowRecipe, AgentFlowWarmStart
from agentic.agentflow.rollout import AgentFlow, build
from agentic.agentflow.tiny.demonstrations import CarelessAnnotator, PlannerDemonstration, demonstrate
from agentic.agentflow.tiny.facts import ATTRIBUTES, ENTITIES
from core.engine.warm_start import Example, batch_by_length, copying_drill
from core.text.tokenizer import encode_text


def batches(config: AgentFlowWarmStart, recipe: AgentFlowRecipe, tokenizer: Any) -> Iterator[list[Example]]:
    """Yield copying drills, then demonstrations."""
    method = build(recipe, tokenizer)
    rng, size = Random(config.seed), config.batch_size
    words = [encode_text(tokenizer, f" {word}")[0] for word in (*ATTRIBUTES, *ENTITIES)]
    digits = encode_text(tokenizer, "0123456789")
    for _ in range(config.copy_steps):
        yield [copying_drill(rng, (*words, *digits * 4)) for _ in range(size)]
    annotator = CarelessAnnotator(config.wrong_tool, config.skip, config.malformed)
    for _ in range(0, config.steps, 8):
        drawn: list[Example] = []
        while len(drawn) < 8 * size:
            turns = demonstrate(rng, annotator, method.config.max_steps)
            drawn += [_encode(turn, method, tokenizer) for turn in turns]
        yield from batch_by_length(rng, drawn[: 8 * size], size)


def _encode(turn: PlannerDemonstration, method: AgentFlow, tokenizer: Any) -> Example:
    """Encode a turn just as the rollout asks the role."""
    prompt = method.prompters[turn.role].render({"question": turn.question, "analysis": "", "memory": turn.memory})
    return prompt, (*encode_text(tokenizer, turn.completion), tokenizer.eos_token_id)
