"""Cold start of the `tiny` preset: a small model learns to read a task and to write a call, from scripted turns.

The demonstrations read and write well and route by habit (see demonstrations.py), so that what GRPO adds is visible:
routing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from agentic.toolorchestra.config import ToolOrchestraRecipe, WarmStartSection
from agentic.toolorchestra.demonstrations import Annotator, Demonstration, demonstrate
from agentic.toolorchestra.prompts import question
from core.chat import encode_text, load_tokenizer
from core.conversation import Renderer
from core.engine.warm_start import Example, supervised_start
from core.hub import resolve
from core.report.run_folder import StepLog
from core.tool_calls import THOUGHT_END


def warm_start(recipe: ToolOrchestraRecipe, folder: Path, metrics: StepLog) -> Path:
    """The model that GRPO starts from: the recipe's own, or what its warm start makes of it in `folder`."""
    config = recipe.warm_start
    if config is None:
        return resolve(recipe.model.path)
    renderer = Renderer(load_tokenizer(resolve(recipe.model.path)))
    return supervised_start(recipe, _batches(config, renderer), config.steps, config.lr, folder, metrics)


def _batches(config: WarmStartSection, renderer: Renderer) -> Iterator[list[Example]]:
    """Demonstrations; those of like length together, so that little is padded in attention."""
    rng, size, annotator = Random(config.seed), config.batch_size, Annotator()
    for _ in range(0, config.steps, 8):
        drawn: list[Example] = []
        while len(drawn) < 8 * size:
            drawn += [_encode(turn, renderer) for turn in demonstrate(rng, annotator)]
        drawn = sorted(drawn[: 8 * size], key=lambda example: len(example[0]))
        batches = [drawn[i : i + size] for i in range(0, len(drawn), size)]
        rng.shuffle(batches)
        yield from batches


def _encode(turn: Demonstration, renderer: Renderer) -> Example:
    """As the rollout asks the orchestrator."""
    prompt = renderer.render(question("compact", renderer, turn.task, "", turn.lines, None))
    tokenizer = renderer.tokenizer
    thought, call = encode_text(tokenizer, turn.thought), encode_text(tokenizer, turn.call)
    return prompt, (*thought, tokenizer.convert_tokens_to_ids(THOUGHT_END), *call, tokenizer.eos_token_id)
