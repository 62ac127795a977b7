"""Start a method on slime or vime from a preset.

    tokentrue train METHOD --backend slime|vime --preset NAME --out DIR [--set key.path=value ...]
                           [--dry-run] [--start-ray]

The dry run prints the script that would run and needs neither of them nor a GPU. What is missing becomes a line with
its fix.
"""

from __future__ import annotations

import difflib
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from core.backends.checks import REPOSITORY
from core.backends.job import Job, join_python_path, launch
from core.backends.slime import flags
from core.backends.slime.framework import FRAMEWORKS, framework_environment, framework_flags
from core.backends.slime.settings import check_arguments
from core.config import Recipe, RecipeError
from core.config.clusters import ServedModel, SlimeSection
from core.hub import CheckpointError, count_positions, is_hub_id, read_json
from core.runs.inputs import is_of_other_weights

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
        RecipeError: the recipe is vime's, and `backend` is not.
    """
    if recipe.slime is None:
        return recipe
    if recipe.slime.framework == "vime" and backend != "vime":
        raise RecipeError("slime.framework is vime; start with --backend vime")
    slime = recipe.slime.model_copy(update={"framework": backend})
    return recipe.model_copy(update={"slime": slime, "verl": None})


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
    train = Path(slime.source) / ("train.py" if slime.colocate else engine.apart_script)
    return Job(
        recipe=recipe,
        cluster=slime,
        paths=paths,
        framework=slime.framework,
        nodes=slime.all_nodes,
        files=files,
        settings=[
            f"source {shlex.quote(str(model_file(slime)))}  # MODEL_ARGS",
            *(f"{name}_ARGS=({shlex.join(words)})" for name, words in groups.items()),
        ],
        command=[
            f"-- python3 {shlex.quote(str(train))}",
            '"${MODEL_ARGS[@]}"',
            *(f'"${{{name}_ARGS[@]}}"' for name in groups),
        ],
        environment={
            "PYTHONPATH": join_python_path(recipe.method, [slime.megatron], [slime.source]),
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            "NCCL_NVLS_ENABLE": "1",
            "PYTHONUNBUFFERED": "1",
            **framework_environment(slime),
        },
        models={"model": slime.checkpoint.hf, **served},
        folders=folders,
        find_local_problems=partial(find_local_problems, recipe, slime, paths),
        served=slime.roles,
        open_points=find_open_points(slime),
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


def model_file(slime: SlimeSection) -> Path:
    return Path(slime.source) / "scripts" / "models" / f"{slime.model}.sh"


def find_local_problems(recipe: Recipe, slime: SlimeSection, paths: flags.Paths) -> Iterator[str]:
    """Name what is missing on this machine."""
    yield from _sources(slime)
    yield from _checkpoints(recipe, slime, paths)
    yield from _model(recipe, slime)


def find_open_points(slime: SlimeSection) -> list[str]:
    """List what a dry run did not check."""
    dockerfile, points = REPOSITORY / "docker" / "Dockerfile", []  # an installed tokentrue has none
    base = dockerfile.is_file() and re.search(r"^ARG \w+=(\S+)$", dockerfile.read_text(encoding="utf-8"), re.MULTILINE)
    if not (model_file(slime).is_file() and (Path(slime.checkpoint.hf) / "config.json").is_file()):
        points.append(f"slime.model: {slime.model} was not compared with the model's config, for one is not here")
    if base and "@sha256:" not in base[1]:
        points.append(f"image: {base[1]} of docker/Dockerfile has no digest; pin it with --build-arg, as the file says")
    return points


TRACKER = "latest_checkpointed_iteration.txt"
"""Names the file that Megatron writes when a checkpoint is complete."""

LONGER_CONTEXT = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"}
"""Names the variables that let a server go beyond the positions of the model's config."""

MODEL_FLAGS = {
    "--num-layers": "num_hidden_layers",
    "--hidden-size": "hidden_size",
    "--ffn-hidden-size": "intermediate_size",
    "--num-attention-heads": "num_attention_heads",
    "--num-query-groups": "num_key_value_heads",
    "--vocab-size": "vocab_size",
    "--rotary-base": "rope_theta",
    "--norm-epsilon": "rms_norm_eps",
}
"""Maps flags of Megatron in slime's scripts/models to keys of config.json."""


def _model(recipe: Recipe, slime: SlimeSection) -> Iterator[str]:
    """Compare the model's config with the file `slime.model`, and with the context that the recipe wants."""
    path, script = Path(slime.checkpoint.hf) / "config.json", model_file(slime)
    if not path.is_file():
        return
    try:
        config = read_json(path)
    except CheckpointError as error:
        yield f"slime.checkpoint.hf: {error}"
        return
    config = {**config, **(config.get("text_config") or {})}
    config = {**(config.get("rope_parameters") or {}), **config}
    wanted, positions = recipe.model.max_model_len, count_positions({"max_position_embeddings": 0, **config})
    if wanted and 0 < positions < wanted and not LONGER_CONTEXT & {*slime.env, *slime.env_from}:
        yield f"model.max_model_len: {wanted} is above the {positions} positions of {path}; lower it"
    if not script.is_file():
        return
    shell = ["bash", "-ec", 'source "$1" >&2; printf "%s\\n" "${MODEL_ARGS[@]}"', "bash", str(script)]
    words = subprocess.run(shell, capture_output=True, text=True).stdout.splitlines()
    # A flag of the recipe comes after those of the script, and wins.
    given: dict[str, Any] = {**dict(pairwise(words)), **slime.flags}
    for flag, key in MODEL_FLAGS.items():
        with suppress(KeyError, TypeError, ValueError):  # one of the two does not say it as a number
            if float(given[flag]) != float(config[key]):
                yield f"slime.model: {script} has {flag} {given[flag]}, and {path} has {key} {config[key]}"
    untie = "--untie-embeddings-and-output-weights"
    untied = bool(slime.flags.get(untie, untie in words))
    if words and untied == config.get("tie_word_embeddings", not untied):
        yield f"slime.model: {script} and {path} differ in whether the head is tied to the embeddings"


def _sources(slime: SlimeSection) -> Iterator[str]:
    name, root, megatron, model = slime.framework, Path(slime.source), Path(slime.megatron), model_file(slime)
    if not (root / "train.py").is_file():
        yield f"slime.root: no {name} at {root}. Run inside {name}'s image, or name its clone: --set slime.root=PATH"
    elif not model.is_file():
        known = sorted(path.stem for path in model.parent.glob("*.sh"))
        close = difflib.get_close_matches(slime.model, known, n=1, cutoff=0)
        yield f"slime.model: no {model}; did you mean {', '.join(close)}? Known: {', '.join(known)}"
    if not (megatron / "megatron" / "training").is_dir():
        yield f"slime.megatron: no Megatron-LM at {megatron}. It is in {name}'s image; or --set slime.megatron=PATH"


def _checkpoints(recipe: Recipe, slime: SlimeSection, paths: flags.Paths) -> Iterator[str]:
    hf, ref, save = Path(slime.checkpoint.hf), Path(slime.checkpoint.ref_load), slime.checkpoint.save
    if save and (Path(save) / TRACKER).is_file() and not paths.recipe.is_file():
        yield f"slime.checkpoint.save: {save} holds another run, from which this one would go on; name another folder"
    if not (hf / "config.json").is_file():
        name = recipe.model.path if is_hub_id(recipe.model.path) else "OWNER/NAME"
        yield f"slime.checkpoint.hf: no model at {hf}. Download it: hf download {name} --local-dir {hf}"
    if not (ref / TRACKER).is_file():
        yield (
            f"slime.checkpoint.ref_load: no torch_dist checkpoint at {ref}. Make it: "
            f"tokentrue convert to-dist --hf {hf} --dist {ref} --model {slime.model} --slime {slime.source} "
            f"--megatron {slime.megatron}"
        )
    elif is_of_other_weights(ref, hf):
        yield f"slime.checkpoint.ref_load: {ref} was made from other weights than those of {hf}; name their own"
    for name, model in slime.sglang.models.items():
        if not (Path(model.path) / "config.json").is_file():
            yield f"slime.sglang.models.{name}.path: no model at {model.path}. Download it there with `hf download`"
