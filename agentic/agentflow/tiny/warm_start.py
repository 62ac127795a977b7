"""Draws the warm start of the `tiny` preset: copying drills, look-up drills, then demonstrations.

The demonstrations are right single turns that choose no step by the state (demonstrations.py): GRPO learns to choose.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentic.agentflow.config import AgentFlowRecipe, AgentFlowWarmStart
from agentic.agentflow.rollout import AgentFlow, build
from agentic.agentflow.tiny.demonstrations import PlannerDemonstration, draw_demonstration, lookup_drill
from agentic.agentflow.tiny.facts import WORDS
from core.text.tokenizer import Tokenizer, encode_text
from core.train import Example, batch_by_length, copying_drill


def batches(config: AgentFlowWarmStart, recipe: AgentFlowRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield copying drills, look-up drills, then demonstrations."""
    method = build(recipe, tokenizer)
    rng, size = Random(config.seed), config.batch_size
    words = [encode_text(tokenizer, f" {word}")[0] for word in WORDS]
    digits = encode_text(tokenizer, "0123456789")
    for _ in range(config.copy_steps):
        yield [copying_drill(rng, (*words, *digits * 4)) for _ in range(size)]
    for _ in range(config.lookup_steps):
        yield [_encode_drill(lookup_drill(rng), tokenizer) for _ in range(size)]
    for _ in range(0, config.steps, 8):
        turns = [draw_demonstration(rng) for _ in range(8 * size)]
        yield from batch_by_length(rng, [encode(turn, method, tokenizer) for turn in turns], size)


def _encode_drill(drill: tuple[str, str], tokenizer: Tokenizer) -> Example:
    prompt, completion = drill
    return encode_text(tokenizer, prompt), encode_text(tokenizer, completion)


def encode(turn: PlannerDemonstration, method: AgentFlow, tokenizer: Tokenizer) -> Example:
    """Encode a turn just as the rollout asks the role."""
    prompt = method.prompters[turn.role].render({"question": turn.question, "analysis": "", "memory": turn.memory})
    return prompt, (*encode_text(tokenizer, turn.completion), tokenizer.eos_token_id)
