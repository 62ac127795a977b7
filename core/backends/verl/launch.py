"""Start a method on verl from a preset.

    tokentrue train METHOD --backend verl --preset NAME --out DIR [--set key.path=value ...] [--dry-run] [--start-ray]

The dry run prints the script that would run and needs neither verl nor a GPU.
"""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

import yaml

from core.backends.job import Job, join_python_path, launch
from core.backends.verl.checks import find_local_problems
from core.backends.verl.data import AGENT
from core.backends.verl.overrides import VerlPaths, as_hydra, cluster, render
from core.backends.verl.settings import LOOP
from core.config import Recipe
from core.hub import is_hub_id


def main(arguments: list[str] | None = None) -> int:
    return launch(arguments, ["verl"], make_job)


def make_job(recipe: Recipe, backend: str, out: Path) -> Job:
    """Make the job of a recipe. Raises RecipeError as core.backends.verl.overrides.render."""
    recipe, paths = recipe.model_copy(update={"slime": None}), VerlPaths(out)
    verl, model = cluster(recipe), recipe.model.path
    files = {paths.recipe: recipe.dump(), paths.loops: [{"name": AGENT, "_target_": LOOP}]}
    words = [f"  {shlex.quote(as_hydra(key, value))}" for key, value in render(recipe, paths).items()]
    return Job(
        recipe=recipe,
        cluster=verl,
        paths=paths,
        framework="verl",
        nodes=verl.nodes,
        files={path: yaml.safe_dump(value, sort_keys=False, allow_unicode=True) for path, value in files.items()},
        settings=["SETTINGS=(", *words, ")"],
        command=["-- python3 -m verl.trainer.main_ppo", '"${SETTINGS[@]}"'],
        environment={
            "PYTHONPATH": join_python_path(recipe.method),
            "PYTHONUNBUFFERED": "1",
            "VERL_USE_EXTERNAL_MODULES": "core.backends.verl.trainer",
            "WANDB_MODE": recipe.run.tracker_mode,
            "WANDB_DIR": str(paths.out),
            "TENSORBOARD_DIR": str(paths.out / "tensorboard"),
            "MLFLOW_TRACKING_URI": f"sqlite:///{paths.out / 'mlflow.db'}",
            **verl.env,
        },
        models={"model": model},
        folders={} if is_hub_id(model) else {"model.path": model},
        find_local_problems=partial(find_local_problems, recipe, verl),
    )
