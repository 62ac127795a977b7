"""Supervised cold start of a small model that was made from nothing: what a `tiny` preset does before GRPO."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from core.config import OptimizerSection, Recipe
from core.engine import weights
from core.engine.trainer import Trainer
from core.hub import resolve
from core.report.console import Progress
from core.report.run_folder import StepLog

Example = tuple[Sequence[int], Sequence[int]]
"""Prompt ids and completion ids; the loss is on the completion."""


def supervised_start(
    recipe: Recipe, batches: Iterable[list[Example]], steps: int, lr: float, folder: Path, metrics: StepLog
) -> Path:
    """Train the recipe's model on `steps` batches into `folder`, unless it is there already. Returns `folder`.

    The folder appears whole at the end: a process killed before starts this stage anew.
    """
    if folder.is_dir():
        return folder
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    start = resolve(recipe.model.path)
    model = weights.load(start, recipe.model.dtype, recipe.model.device)
    schedule = OptimizerSection(
        lr=lr, warmup_steps=20, decay="linear", decay_steps=steps, weight_decay=0.01, max_tokens_per_pack=1 << 20
    )
    trainer = Trainer(model, schedule)
    metrics.rewind("warm_start", 0)
    with Progress(steps, label="warm start") as progress:
        for step, batch in zip(range(1, steps + 1), batches, strict=False):
            began = time.perf_counter()
            stats = trainer.supervised_step(batch)
            metrics.append({"stage": "warm_start", "step": step, **stats, "seconds": time.perf_counter() - began})
            progress.update(step, loss=stats["loss"])
    weights.save(model, partial, like=start)
    partial.rename(folder)
    return folder
