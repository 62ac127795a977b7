"""Start a method on slime or vime from a preset.

    tokentrue train METHOD --backend slime|vime --preset NAME --out DIR [--set key.path=value ...]
                           [--dry-run] [--start-ray]

The dry run prints the script that would run and needs neither of them nor a GPU.
"""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from core.backends.job import Job, join_python_path, launch
from core.backends.slime import checks, flags
from core.backends.slime.framework import FRAMEWORKS, framework_environment, framework_flags
from core.backends.slime.settings import check_arguments
from core.config import Recipe, RecipeError
from core.config.clusters import ServedModel, SlimeSection

SERVING = {
    "kv_tokens": {"sglang": "max-total-tokens", "vllm": "gpu-memory-utilization"},
    "max_num_seqs": {"sglang": "max-running-requests", "vllm": "max-num-seqs"},
    "max_prefill_tokens": {"sglang": "chunked-prefill-size", "vllm": "max-num-batched-tokens"},
}
"""Maps keys of the embedded engine to the flag of each rollout engine in their place."""


def main(arguments: list[str] | None = None) -> int:
    return launch(
        arguments, ("slime", "vime"), lambda recipe, backend, out: make_job(choose_framework(recipe, backend), out)
    )


def choose_framework(recipe: Recipe, backend: str) -> Recipe:
    """Return the recipe for `backend`, slime or vime; one without a cluster as it is.

    Raises:
        RecipeError: the recipe is vime's.
    """
    if recipe.slime is None:
        return recipe
    if recipe.slime.framework == "vime" and backend != "vime":
        raise RecipeError("slime.framework is vime; start with --backend vime")
    slime = recipe.slime.model_copy(update={"framework": backend})
    return recipe.model_copy(update={"slime": slime, "verl": None})


def environment(recipe: Recipe) -> dict[str, str]:
    """Return the environment variables of every process of the job."""
    slime = flags.cluster(recipe)
    return {
        "PYTHONPATH": join_python_path(recipe.method, [slime.megatron], [slime.source]),
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "NCCL_NVLS_ENABLE": "1",
        "PYTHONUNBUFFERED": "1",
        **framework_environment(slime),
    }


def make_job(recipe: Recipe, out: Path) -> Job:
    """Make the job of a recipe; its script is slime's own idiom (scripts/run-*.sh in slime's repository).

    Raises:
        RecipeError: as `flags.groups`, or a flag contradicts the recipe, as the hooks would say in the job.
    """
    paths = flags.Paths(out)
    groups = {name: words for name, words in flags.groups(recipe, paths).items() if words}
    slime = flags.cluster(recipe)
    engine = FRAMEWORKS[slime.framework]
    own = {flag.lstrip("-").replace("-", "_"): value for flag, value in framework_flags(slime).items()}
    check_arguments(recipe, SimpleNamespace(**own), converted=slime.rows == "container")
    files = {paths.recipe: yaml.safe_dump({"agentic_recipe": recipe.dump()}, sort_keys=False, allow_unicode=True)}
    if config := server_config(slime):
        files[paths.servers] = config
    served = {f"slime.sglang.models.{name}": model.path for name, model in slime.sglang.models.items()}
    folders = {f"slime.checkpoint.{key}": path for key, path in slime.checkpoint if path is not None}
    folders |= {"slime.root": slime.source, "slime.megatron": slime.megatron}
    folders |= {f"{key}.path": path for key, path in served.items()}
    train = Path(slime.source) / ("train.py" if slime.colocate else "train_async.py")
    return Job(
        recipe=recipe,
        cluster=slime,
        paths=paths,
        framework=slime.framework,
        nodes=slime.all_nodes,
        files=files,
        settings=[
            f"source {shlex.quote(str(checks.model_file(slime)))}  # MODEL_ARGS",
            *(f"{name}_ARGS=({shlex.join(words)})" for name, words in groups.items()),
        ],
        command=[
            f"-- python3 {shlex.quote(str(train))}",
            '"${MODEL_ARGS[@]}"',
            *(f'"${{{name}_ARGS[@]}}"' for name in groups),
        ],
        environment=environment(recipe),
        models={"model": slime.checkpoint.hf, **served},
        folders=folders,
        find_local_problems=partial(checks.find_local_problems, recipe, slime),
        served=slime.roles,
        open_points=checks.find_open_points(slime),
        unread={
            "model.path": "slime.checkpoint.hf",
            "run.record_every": "slime.flags.--save-debug-rollout-data",
            **({"run.steps": "slime.num_epoch"} if slime.num_epoch else {}),
            **{f"inference.{key}": f"slime.flags.{engine.flag(of[engine.engine])}" for key, of in SERVING.items()},
        },
    )


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
