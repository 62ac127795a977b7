"""Train MemAgent on the embedded engine.

    python -m agentic.memagent.train --preset tiny --out runs/memagent-tiny [--set key.path=value ...] [--dry-run]

A run that was interrupted goes on where its newest checkpoint is when the same command is given again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import torch
import yaml

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
    """All seeds of the recipe, one after the other; returns their last checkpoints."""
    if recipe.engine.threads:
        torch.set_num_threads(recipe.engine.threads)
    if recipe.warm_start is None:
        start = resolve(recipe.model.path)
    else:
        start = warm_start(recipe, recipe.warm_start, folder.path / "warm_start", folder.metrics(recipe.run.seeds[0]))
    return [asyncio.run(_train_seed(recipe, folder, seed, start)) for seed in recipe.run.seeds]


async def _train_seed(recipe: MemAgentRecipe, folder: RunFolder, seed: int, start: Path) -> Path:
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
        train(recipe, folder)
    except (RecipeError, RunFolderError, CheckpointError, DataError, TrainingError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
