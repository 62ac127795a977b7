"""Train MemAgent on the embedded engine.

    python -m agentic.memagent.train --preset tiny --out runs/memagent-tiny [--set key.path=value ...] [--dry-run]

A run that was interrupted goes on where its newest checkpoint is when the same command is given again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path

import torch
import yaml
from rich.console import Console

from agentic.memagent.config import MemAgentRecipe, load_recipe
from agentic.memagent.rollout import MemAgent
from agentic.memagent.warm_start import warm_start
from core.chat import load_tokenizer
from core.config import RecipeError
from core.data.files import DataError
from core.data.tasks import read_tasks
from core.engine.loop import GRPOLoop, TrainingError
from core.hub import CheckpointError, resolve
from core.policy.sglang import SGLangPolicy
from core.report.run_folder import RunFolder, RunFolderError
from core.report.trackers import open_trackers


def train(recipe: MemAgentRecipe, folder: RunFolder) -> list[Path]:
    """All seeds of the recipe, `run.parallel_seeds` at a time; returns their last checkpoints."""
    _set_threads(recipe)
    if recipe.warm_start is None:
        start = resolve(recipe.model.path)
    else:
        start = warm_start(recipe, recipe.warm_start, folder.path / "warm_start", folder.metrics(recipe.run.seeds[0]))
    seeds, parallel = recipe.run.seeds, min(recipe.run.parallel_seeds, len(recipe.run.seeds))
    if parallel == 1:
        return [asyncio.run(_train_seed(recipe, folder, seed, start)) for seed in seeds]
    with ProcessPoolExecutor(parallel, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        return list(pool.map(partial(_train_in_worker, recipe, folder.path, start), seeds))


def _train_in_worker(recipe: MemAgentRecipe, folder: Path, start: Path, seed: int) -> Path:
    _set_threads(recipe)
    plain = Console(force_terminal=False)  # bars of several processes would overwrite each other
    return asyncio.run(_train_seed(recipe, RunFolder(folder), seed, start, plain))


def _end_with_parent() -> None:
    """A worker must not outlive a parent that was killed: the run that resumes would meet it in the same files."""

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _set_threads(recipe: MemAgentRecipe) -> None:
    if recipe.engine.threads:
        torch.set_num_threads(recipe.engine.threads)


async def _train_seed(
    recipe: MemAgentRecipe, folder: RunFolder, seed: int, start: Path, console: Console | None = None
) -> Path:
    tokenizer = load_tokenizer(start)
    trackers = open_trackers(
        recipe.run.trackers,
        folder.seed_path(seed),
        run_name=f"{folder.path.name}-seed-{seed}",
        project="memagent",
        config=recipe.dump(),
        wandb_mode=recipe.run.tracker_mode,
    )
    loop = GRPOLoop(
        recipe,
        MemAgent(recipe.memagent, tokenizer),
        tokenizer,
        read_tasks(recipe.data.train),
        read_tasks(recipe.data.eval) if recipe.data.eval else [],
        folder,
        seed,
        start,
        roles={name: SGLangPolicy(url) for name, url in recipe.roles.items()},
        trackers=trackers,
        console=console,
    )
    try:
        return await loop.run()
    finally:
        trackers.close()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train MemAgent on the embedded engine.")
    parser.add_argument("--preset", default="tiny", help="a name in agentic/memagent/presets, or a YAML file")
    parser.add_argument("--out", type=Path, help="run folder; default runs/memagent-PRESET")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--fresh", action="store_true", help="delete an earlier run in that folder first")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved recipe and stop")
    options = parser.parse_args(arguments)
    try:
        recipe = load_recipe(options.preset, options.overrides)
        if options.dry_run:
            print(yaml.safe_dump(recipe.dump(), sort_keys=False), end="")
            return 0
        folder = RunFolder.create(
            options.out or Path("runs") / f"memagent-{recipe.preset}", recipe.dump(), fresh=options.fresh
        )
        with folder.locked():
            train(recipe, folder)
    except BrokenProcessPool:
        print("error: a training process died, perhaps for lack of memory; run again to go on", file=sys.stderr)
        return 1
    except (RecipeError, RunFolderError, CheckpointError, DataError, TrainingError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
