"""The supervised cold start of a small untrained model: what a `tiny` preset does before GRPO."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from core.config import OptimizerSection, Recipe, RecipeError, WarmStartSection
from core.engine import weights
from core.engine.trainer import Trainer
from core.hub import resolve
from core.rollout.method import tiny_module
from core.runs.progress import Progress
from core.runs.run_folder import StepLog
from core.text.tokenizer import load_tokenizer

Example = tuple[Sequence[int], Sequence[int]]
"""Pairs prompt ids with completion ids; the loss is on the completion."""


def run_warm_start(recipe: Recipe, folder: Path, metrics: StepLog) -> Path:
    """Return the model that RL starts from: the recipe's own, or the one that the warm start trains into `folder`.

    Raises:
        RecipeError: the recipe has a warm start, but the method has none.
    """
    if recipe.warm_start is None:
        return resolve(recipe.model.path)
    module = tiny_module(recipe.method, "warm_start")
    if module is None:
        raise RecipeError(
            f"warm_start: agentic/{recipe.method}/tiny/warm_start.py is missing; write one with a function "
            "batches(config, recipe, tokenizer), or set `warm_start: null`"
        )
    if not folder.is_dir():
        tokenizer = load_tokenizer(resolve(recipe.model.path))
        _train(recipe, recipe.warm_start, module.batches(recipe.warm_start, recipe, tokenizer), folder, metrics)
    return folder


def copying_drill(rng: Random, token_ids: Sequence[int]) -> Example:
    """Draw 8 to 24 of the `token_ids` as a prompt and repeat them as its completion; copying, once learned, makes
    extraction easy."""
    sequence = tuple(rng.choices(token_ids, k=rng.randint(8, 24)))
    return sequence, sequence


def batch_by_length(rng: Random, examples: Iterable[Example], size: int) -> list[list[Example]]:
    """Make batches of `size` in random order. Examples of similar length come together, so attention pads little."""
    ordered = sorted(examples, key=lambda example: len(example[0]))
    batches = [ordered[i : i + size] for i in range(0, len(ordered), size)]
    rng.shuffle(batches)
    return batches


def _train(
    recipe: Recipe, config: WarmStartSection, batches: Iterable[list[Example]], folder: Path, metrics: StepLog
) -> None:
    """Train on the batches and save to `folder`, which appears whole at the end: a killed process starts anew."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    start, steps = resolve(recipe.model.path), config.total_steps
    model = weights.load(start, recipe.model.dtype, recipe.model.device)
    schedule = OptimizerSection(
        lr=config.lr,
        lr_warmup_steps=20,
        lr_scheduler_type="linear",
        lr_decay_steps=steps,
        weight_decay=0.01,
        max_tokens_per_pack=1 << 20,
    )
    trainer = Trainer(model, schedule)
    metrics.rewind("warm_start", 0)
    with Progress(steps, label="warm start") as progress:
        for step, batch in zip(range(1, steps + 1), batches, strict=False):
            started = time.perf_counter()
            stats = trainer.supervised_step(batch)
            metrics.append({"stage": "warm_start", "step": step, **stats, "seconds": time.perf_counter() - started})
            progress.update(step, loss=stats["loss"])
    weights.save(model, partial, like=start)
    partial.rename(folder)
