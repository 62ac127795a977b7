"""Train a method on the embedded engine.

python -m core.engine.train METHOD --preset NAME --out DIR [--set key.path=value ...] [--fresh] [--dry-run]

The same command continues an interrupted run from its newest checkpoint.
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

from core.config import Recipe, RecipeError
from core.data.files import DataError
from core.data.tasks import read_tasks
from core.engine.loop import GRPOLoop, TrainingError
from core.engine.policy import open_frozen_model
from core.engine.warm_start import run_warm_start
from core.hub import CheckpointError, resolve
from core.rollout.method import MethodSpec, check_roles, method_spec
from core.rollout.roles import open_roles
from core.runs.run_folder import RunFolder, RunFolderError
from core.runs.trackers import TrackerError, open_trackers
from core.text.tokenizer import load_tokenizer

CHANGEABLE_KEYS = [
    f"run.{key}"
    for key in ("steps", "seeds", "parallel_seeds", "save_every", "trajectories_every", "trackers", "tracker_mode")
]
"""Lists the keys that may change when a run continues: how far, which seeds, what is written; never how it learns."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m core.engine.train", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("method", help="a folder of agentic/")
    parser.add_argument("--preset", default="tiny", help="a name in presets/ of the method, or a file")
    parser.add_argument("--out", type=Path, help="run folder; default runs/METHOD-PRESET")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="change a key of the recipe"
    )
    parser.add_argument("--fresh", action="store_true", help="delete an earlier run in that folder first")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved recipe and stop")
    options = parser.parse_args(arguments)
    try:
        spec = method_spec(options.method)
        recipe = spec.load(options.preset, options.overrides)
        if options.dry_run:
            print(yaml.safe_dump(recipe.dump(), sort_keys=False), end="")
            return 0
        check_inputs(spec, recipe)
        out = options.out or Path("runs") / f"{spec.name}-{recipe.preset}"
        folder = RunFolder.create(out, recipe.dump(), fresh=options.fresh, may_differ=CHANGEABLE_KEYS)
        with folder.lock():
            folder.update_config(recipe.dump())
            train(spec, recipe, folder)
    except BrokenProcessPool:
        print("error: a training process died, perhaps for lack of memory; run again to go on", file=sys.stderr)
        return 1
    except (OSError, RecipeError, RunFolderError, CheckpointError, DataError, TrackerError, TrainingError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def check_inputs(spec: MethodSpec, recipe: Recipe) -> None:
    """Check data, tokenizer, tools and roles before the run folder exists and the warm start costs time.

    Raises:
        RecipeError, DataError, CheckpointError: something is missing or broken; the message names it and the fix.
    """
    for path in filter(None, (recipe.data.train, recipe.data.eval)):
        read_tasks(path, limit=1, require_context=spec.needs_context)
    method = spec.build(recipe, load_tokenizer(resolve(recipe.model.path, weights=False)))
    try:
        check_roles(method, recipe.roles)
    finally:
        asyncio.run(method.close())


def train(spec: MethodSpec, recipe: Recipe, folder: RunFolder) -> list[Path]:
    """Train all seeds of the recipe, `run.parallel_seeds` at a time, and return their last checkpoints."""
    _set_threads(recipe)
    start = run_warm_start(recipe, folder.path / "warm_start", folder.open_metrics(recipe.run.seeds[0]))
    seeds, parallel = recipe.run.seeds, min(recipe.run.parallel_seeds, len(recipe.run.seeds))
    if parallel == 1:
        return [asyncio.run(_train_seed(spec, recipe, folder, seed, start)) for seed in seeds]
    with ProcessPoolExecutor(parallel, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        return list(pool.map(partial(_train_in_worker, spec, recipe, folder.path, start), seeds))


def _train_in_worker(spec: MethodSpec, recipe: Recipe, folder: Path, start: Path, seed: int) -> Path:
    _set_threads(recipe)
    plain = Console(force_terminal=False)  # bars of several processes would overwrite each other
    return asyncio.run(_train_seed(spec, recipe, RunFolder(folder), seed, start, plain))


def _end_with_parent() -> None:
    """End this worker when its parent is killed: otherwise it would write to the files of the run that resumes."""

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _set_threads(recipe: Recipe) -> None:
    if recipe.engine.threads:
        torch.set_num_threads(recipe.engine.threads)


async def _train_seed(
    spec: MethodSpec, recipe: Recipe, folder: RunFolder, seed: int, start: Path, console: Console | None = None
) -> Path:
    tokenizer = load_tokenizer(start)
    trackers = open_trackers(
        recipe.run.trackers,
        folder.seed_path(seed),
        run_name=f"{folder.path.name}-seed-{seed}",
        project=spec.name,
        config=recipe.dump(),
        wandb_mode=recipe.run.tracker_mode,
    )
    read = partial(read_tasks, require_context=spec.needs_context)
    method = spec.build(recipe, tokenizer)
    try:
        check_roles(method, recipe.roles)
        async with open_roles(recipe, tokenizer, open_frozen_model) as roles:
            loop = GRPOLoop(
                recipe,
                method,
                tokenizer,
                read(recipe.data.train),
                read(recipe.data.eval) if recipe.data.eval else [],
                folder,
                seed,
                start,
                roles=roles,
                regrade=partial(spec.regrade, recipe) if spec.regrade else None,
                trackers=trackers,
                console=console,
            )
            return await loop.run()
    finally:
        await method.close()
        trackers.close()


if __name__ == "__main__":
    sys.exit(main())
