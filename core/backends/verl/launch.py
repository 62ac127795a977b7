"""Start a method on verl from a preset.

    tokentrue train METHOD --backend verl --preset NAME --out DIR [--set key.path=value ...] [--dry-run] [--start-ray]

The dry run prints the script that would run and needs neither verl nor a GPU.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import partial
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import yaml

from core.backends.job import Job, join_python_path, launch
from core.backends.verl.data import AGENT
from core.backends.verl.overrides import MODEL, VerlPaths, as_hydra, cluster, render
from core.backends.verl.settings import LOOP
from core.config import Recipe
from core.config.clusters import VerlSection
from core.hub import is_hub_id, read_json

VERSION = "0.9.1"
"""Names the release of verl whose trainers ours extend. Its methods that they replace are no public interface."""
POSITIONS = f"{MODEL}.override_config.max_position_embeddings"


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
        unread={f"inference.{key}": "verl.overrides" for key in ("kv_tokens", "max_num_seqs", "max_prefill_tokens")},
    )


def find_local_problems(recipe: Recipe, verl: VerlSection) -> Iterator[str]:
    """Name what is missing. An id of the hub is downloaded by each node.

    Raises:
        CheckpointError: the model's config is broken.
    """
    install = f"run inside an image that has it, or pip install 'verl[{verl.engine},fsdp]=={VERSION}'"
    if (found := next((one.version for one in distributions(name="verl")), "none")) != VERSION:
        yield f"verl {VERSION} is needed, and here is {found}; {install}"
    if find_spec(verl.engine) is None:
        yield f"no {verl.engine} here; {install}"
    path = Path(recipe.model.path)
    if is_hub_id(path):
        return
    if not (path / "config.json").is_file():
        yield f"model.path: no model at {path}. Download it there with `hf download`, or give an id of the hub"
        return
    config, longest = read_json(path / "config.json"), recipe.model.max_model_len or 0
    limit = {**(config.get("text_config") or {}), **config}.get("max_position_embeddings") or longest
    if longest > limit and POSITIONS not in {key.lstrip("+") for key in verl.overrides}:
        fix = f"lower it, or --set 'verl.overrides={{+{POSITIONS}: {longest}}}' if the model is meant for it"
        yield f"model.max_model_len: {longest} is above the {limit} positions of {path}, which verl refuses; {fix}"
