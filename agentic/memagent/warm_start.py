"""Cold start of the `tiny` preset: a small model learns copying, looking up, then single turns, from scripts.

The demonstrations read well and keep badly (see demonstrations.py), so that what GRPO adds is visible: keeping.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from agentic.memagent.chunks import split_chunks
from agentic.memagent.config import MemAgentRecipe, WarmStartSection
from agentic.memagent.demonstrations import Annotator, Demonstration, copying_drill, demonstration, lookup_drill
from agentic.memagent.rollout import MemAgent
from agentic.memagent.words import KEYS, VALUES
from core.chat import Ids, encode_text, load_tokenizer
from core.config import OptimizerSection
from core.engine import weights
from core.engine.trainer import Trainer
from core.hub import resolve
from core.report.console import Progress
from core.report.run_folder import StepLog

Example = tuple[Ids, Ids]

FULL_SECTION = 90
"""Words of the longest section, about a chunk of the `tiny` preset."""


def warm_start(recipe: MemAgentRecipe, config: WarmStartSection, folder: Path, metrics: StepLog) -> Path:
    """Train the start model of `recipe` into `folder`, unless it is there already. Returns `folder`.

    The folder appears whole at the end: a process killed before starts this stage anew.
    """
    if folder.is_dir():
        return folder
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    start = resolve(recipe.model.path)
    tokenizer = load_tokenizer(start)
    model = weights.load(start, recipe.model.dtype, recipe.model.device)
    total = config.copy_steps + config.lookup_steps + config.steps
    schedule = OptimizerSection(
        lr=config.lr, warmup_steps=20, decay="linear", decay_steps=total, weight_decay=0.01, max_tokens_per_pack=1 << 20
    )
    trainer = Trainer(model, schedule)
    metrics.rewind("warm_start", 0)
    batches = _batches(config, MemAgent(recipe.memagent, tokenizer), tokenizer)
    with Progress(total, label="warm start") as progress:
        for step in range(1, total + 1):
            began = time.perf_counter()
            stats = trainer.supervised_step(next(batches))
            metrics.append({"stage": "warm_start", "step": step, **stats, "seconds": time.perf_counter() - began})
            progress.update(step, loss=stats["loss"])
    weights.save(model, partial, like=start)
    partial.rename(folder)
    return folder


def _batches(config: WarmStartSection, method: MemAgent, tokenizer: Any) -> Iterator[list[Example]]:
    """Copying drills, lookup drills, then demonstrations whose sections grow to full length over the first third.

    Demonstrations of like length come together, so that little is padded in attention.
    """
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
        drawn.sort(key=lambda example: len(example[0]))
        batches = [drawn[i : i + size] for i in range(0, len(drawn), size)]
        rng.shuffle(batches)
        yield from batches


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
