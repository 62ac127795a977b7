"""Writes a recipe as one shell script, which writes the job's files and submits it; the dry run prints it.

The script is slime's own idiom (scripts/run-*.sh in slime's repository), so that the two can be laid side by side.
"""

from __future__ import annotations

import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from core.backends.checks import REPOSITORY
from core.backends.ray_cluster import RayCluster, quote_environment
from core.backends.slime import flags
from core.backends.slime.framework import FRAMEWORKS, framework_environment
from core.config import Recipe
from core.config.slime import ServedModel, SlimeSection
from core.rollout.method import find_package


def ray_cluster(slime: SlimeSection) -> RayCluster:
    """Return the Ray cluster that the job needs."""
    return RayCluster(slime.ray.head, slime.ray.dashboard_port, slime.all_nodes, slime.gpus_per_node)


def environment(recipe: Recipe) -> dict[str, str]:
    """Return the environment variables of every process of the job. A method outside of agentic/ is found, too."""
    slime, package = flags.cluster(recipe), find_package(recipe.method)
    own = Path(import_module(f"{package}.rollout").__file__ or "").parents[package.count(".") + 1]
    return {
        "PYTHONPATH": ":".join(dict.fromkeys(map(str, (slime.megatron, REPOSITORY, own, slime.source)))),
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "NCCL_NVLS_ENABLE": "1",
        "PYTHONUNBUFFERED": "1",
        **framework_environment(slime),
    }


def model_file(slime: SlimeSection) -> Path:
    return Path(slime.source) / "scripts" / "models" / f"{slime.model}.sh"


def write_script(recipe: Recipe, paths: flags.Paths) -> str:
    """Write the whole script.

    Raises:
        RecipeError: as `flags.groups`.
    """
    groups = {name: words for name, words in flags.groups(recipe, paths).items() if words}
    slime = flags.cluster(recipe)
    train = Path(slime.source) / ("train.py" if slime.colocate else "train_async.py")
    submit = [
        f"ray job submit --address={ray_cluster(slime).url}",
        f"--runtime-env-json={quote_environment(environment(recipe), slime.env_from)}",
        f"-- python3 {shlex.quote(str(train))}",
        '"${MODEL_ARGS[@]}"',
        *(f'"${{{name}_ARGS[@]}}"' for name in groups),
    ]
    lines = [
        "#!/usr/bin/env bash",
        f"# {recipe.method}, preset {recipe.preset}, on {slime.framework}. Ray must be running:",
        *(f"#   {line}" for line in ray_cluster(slime).describe_start()),
        "set -eo pipefail",
        *_files(recipe, paths),
        "",
        f"source {shlex.quote(str(model_file(slime)))}  # MODEL_ARGS",
        *(f"{name}_ARGS=({shlex.join(words)})" for name, words in groups.items()),
        "",
        " \\\n  ".join(submit),
        "",
    ]
    return "\n".join(lines)


def server_config(slime: SlimeSection) -> str | None:
    """Write the YAML of --sglang-config or --vllm-config; None for a policy alone."""
    models = slime.sglang.models
    if not models:
        return None
    policy = ServedModel(path=slime.checkpoint.hf, gpus=slime.policy_gpus)
    entries = [_model_entry("policy", policy, update=True)]
    entries += [_model_entry(name, model, update=False) for name, model in models.items()]
    return str(yaml.safe_dump({FRAMEWORKS[slime.framework].engine: entries}, sort_keys=False))


def _model_entry(name: str, model: ServedModel, update: bool) -> dict[str, Any]:
    group: dict[str, Any] = {"worker_type": "regular", "num_gpus": model.gpus}
    if model.gpus_per_engine:
        group["num_gpus_per_engine"] = model.gpus_per_engine
    if model.overrides:
        group["overrides"] = dict(model.overrides)
    return {"name": name, "model_path": model.path, "update_weights": update, "server_groups": [group]}


def _files(recipe: Recipe, paths: flags.Paths) -> list[str]:
    # Lines of the script that write what the job reads into the run folder.
    files = {paths.recipe: yaml.safe_dump({"agentic_recipe": recipe.dump()}, sort_keys=False, allow_unicode=True)}
    if config := server_config(flags.cluster(recipe)):
        files[paths.servers] = config
    lines = [f"cd {shlex.quote(str(REPOSITORY))}", f"mkdir -p {shlex.quote(str(paths.out))}"]
    for path, text in files.items():
        lines += [f"cat >{shlex.quote(str(path))} <<'YAML'", text.rstrip("\n"), "YAML"]
    data: dict[Path, tuple[str, list[str]]] = {paths.train: (recipe.data.train, [])}
    if recipe.data.eval and recipe.run.eval_every:
        data[paths.eval] = (recipe.data.eval, ["--limit", str(recipe.run.eval_tasks)])
    for target, (source, limit) in data.items():
        lines.append(shlex.join(["python3", "-m", "core.backends.slime.records", source, str(target), *limit]))
    return lines
