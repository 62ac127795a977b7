"""Trains on demonstrations: the cold start before GRPO, and the baseline that is shown whole correct trajectories."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import torch

from core.config import Recipe, RecipeError, RejectionSection, SupervisedSection
from core.engine import weights
from core.engine.lora import add_adapters
from core.hub import resolve
from core.runs.health import Health
from core.runs.progress import Progress, Show
from core.runs.run_folder import StepLog, list_checkpoints
from core.text.tokenizer import load_tokenizer
from core.train import checkpoint
from core.train.trainer import Trainer, TrainingError
from core.worlds import Example, find_world

SAVE_SECONDS = 60.0
"""Bounds the work that a killed supervised training repeats, where a checkpoint is written in a few seconds."""
SAVE_SHARE = 0.05
"""Limits the share of the time that writing checkpoints takes; those of a large model come less often."""


def run_warm_start(recipe: Recipe, folder: Path, metrics: StepLog, show: Show | None = None) -> Path:
    """Return the model that RL starts from: the recipe's own, or the one that the warm start trains into `folder`.

    Raises:
        RecipeError: the recipe has a warm start, but the method has none, or 4 bits would round it away.
    """
    config = recipe.warm_start
    if config is None:
        return resolve(recipe.model.path)
    if recipe.model.lora is not None and recipe.model.lora.load_in_4bit:
        raise RecipeError(
            "model.lora.load_in_4bit: not beside warm_start, whose merged weights 4 bits would round away. Train the "
            "warm start alone, with run.steps=1, and name its model in model.path of a run without 4 bits"
        )
    world = find_world(recipe.method, recipe.world)
    if world is None or world.demonstrate is None or (config.lookup_steps and world.lookup is None):
        lacking = "lookup" if world is not None and world.demonstrate is not None else "demonstrate"
        raise RecipeError(
            f"warm_start: {recipe.world} of {recipe.method} is missing, or its WORLD lacks `{lacking}`; write "
            "it (core/worlds), or set `warm_start: null`"
        )
    if not folder.is_dir():
        start = resolve(recipe.model.path)
        batches = world.draw_warm_start(config, recipe, load_tokenizer(start))
        threads = torch.get_num_threads()
        torch.set_num_threads(config.threads or threads)
        train_supervised(
            recipe, config, config.total_steps, start, batches, folder, metrics, stage="warm_start", show=show
        )
        torch.set_num_threads(threads)
    return folder


def run_supervised(recipe: Recipe, start: Path, folder: Path, show: Show | None = None) -> Path:
    """Return the model `folder`/model: the model `start`, trained on whole correct trajectories.

    It shows what the model can learn. Unlike RL, it needs demonstrations of every turn.

    Raises:
        RecipeError: the method writes no such trajectories.
    """
    config, model = recipe.supervised, folder / "model"
    assert config is not None, "check_baseline has seen to it"
    world = find_world(recipe.method, recipe.world)
    if world is None or (world.solve is None and world.draw_supervised is None):
        raise RecipeError(
            f"supervised: {recipe.world} of {recipe.method} is missing, or its WORLD lacks `solve`; write one "
            "that yields the turns of whole correct trajectories (core/worlds)"
        )
    if not model.is_dir():
        batches = world.draw_solutions(config, recipe, load_tokenizer(start))
        metrics = StepLog(folder / "metrics.jsonl")
        train_supervised(recipe, config, config.steps, start, batches, model, metrics, stage="supervised", show=show)
    return model


def train_supervised(
    recipe: Recipe,
    config: SupervisedSection | RejectionSection,
    steps: int,
    start: Path,
    batches: Iterable[Sequence[Example]],
    folder: Path,
    metrics: StepLog,
    *,
    stage: str,
    label: str | None = None,
    show: Show | None = None,
) -> None:
    """Train the model `start` on the first `steps` batches, log each step as `stage`, and save to `folder`.

    The rate of `config` warms up, then falls linearly to 0 after the last step, and weights decay by 0.01; other
    settings are those of RL. The folder appears whole at the end. A killed process goes on from its newest checkpoint,
    in general at most SAVE_SECONDS of work earlier, and ends with the same weights.

    Raises:
        TrainingError: all optimizer steps were skipped, several in a row; or there are fewer batches than steps.
    """
    rate = {"lr": config.lr, "lr_warmup_steps": config.lr_warmup_steps, "lr_scheduler_type": "linear"}
    optimizer = recipe.optimizer.model_copy(update={**rate, "lr_decay_steps": steps, "weight_decay": 0.01})
    partial = folder.with_name(f".{folder.name}.partial")
    checkpoints = partial / f"of-{steps}"  # with other steps, batches and rates would be others
    with Progress(steps, label=label or stage.replace("_", " "), show=show) as progress:
        progress.tell("loading the model")
        model = weights.load(start, recipe.model.dtype, recipe.model.device, recipe.model.lora)
        add_adapters(model, recipe.model.lora)
        trainer = Trainer(model, optimizer, start=start, compiled=recipe.model.compile)
        newest, done = checkpoint.latest(checkpoints), 0
        if newest is not None:
            state = checkpoint.load(newest, model)
            trainer.load_state(state["trainer"])
            done = state["step"]  # a batch without a token is a step here, and none of the trainer's
        step = done
        metrics.rewind(stage, done)
        progress.resume(done)
        health = Health(recipe.health)
        if steps < (rising := config.lr_warmup_steps):
            progress.note(f"lr_warmup_steps is {rising}, and there are {steps} steps: the rate ends below lr; lower it")
        saved_at, saving = time.monotonic(), 0.0
        for step, batch in zip(range(done + 1, steps + 1), islice(batches, done, None), strict=False):
            started = time.perf_counter()
            stats = trainer.supervised_step(batch)
            metrics.append({"stage": stage, "step": step, **stats, "seconds": time.perf_counter() - started})
            progress.update(step, loss=stats["loss"])
            for line in health.update(stats):
                progress.note(f"step {step}: {line}")
            if reason := health.find_end():
                raise TrainingError(f"{stage.replace('_', ' ')}, step {step}: {reason}")
            if step < steps and time.monotonic() - saved_at > max(SAVE_SECONDS, saving / SAVE_SHARE):
                began = time.monotonic()
                metrics.sync()  # a checkpoint must not outlive the records of the steps before it
                checkpoint.save(checkpoints, step, model, start, {"trainer": trainer.state()})
                for old in list_checkpoints(checkpoints)[:-1]:
                    shutil.rmtree(old)
                saved_at = time.monotonic()
                saving = saved_at - began
        if step < steps:
            raise TrainingError(
                f"{stage.replace('_', ' ')}: its examples end after {step} of {steps} batches; let the world yield "
                "more, or take fewer steps"
            )
    metrics.sync()
    with checkpoint.write_atomically(folder, partial / "model") as whole:
        # In float32 whatever the model computes in: RL goes on from these very weights.
        weights.save(model, whole, like=start, tensors=trainer.precise_weights())
    shutil.rmtree(partial)
