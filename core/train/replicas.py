"""Starts the rollout servers of a run (`inference.replicas`) on the GPUs that the trainer leaves, and keeps them up."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from core.config import Recipe, RecipeError
from core.config.load import replace_keys
from core.engine import ModelConfig
from core.engine.footprint import cache_bytes, format_bytes, parameter_bytes
from core.engine.weights import find_device
from core.hub import resolve
from core.policy.server_process import ServerCommand, ServerError, find_free_port, keep_servers, make_server_command
from core.policy.servers import VLLM

HOST = "127.0.0.1"
START_S = 1800.0
SPLIT_OPTIONS = {"sglang": "--tp-size", "vllm": "--tensor-parallel-size"}
"""Name the option by which a server splits its model among GPUs."""


@contextmanager
def start_replicas(recipe: Recipe, logs: Path) -> Iterator[Recipe]:
    """Yield the recipe with the started servers as `inference.servers`; without `inference.replicas`, as it is.

    Raises:
        RecipeError: there are too few GPUs, or a server does not start.
    """
    if not recipe.inference.replicas:
        yield recipe
        return
    commands = make_commands(recipe)
    try:
        with keep_servers(commands, logs):
            scheme = VLLM if recipe.inference.engine == "vllm" else ""
            servers = tuple(scheme + command.url for command in commands.values())
            yield replace_keys(recipe, {"inference.servers": servers, "inference.replicas": 0})
    except ServerError as error:
        raise RecipeError(f"inference.replicas: {error}") from error


def make_commands(recipe: Recipe) -> dict[str, ServerCommand]:
    """Return the command of each server by its name. They hold the recipe's model, and get the trainer's weights later.

    Raises:
        RecipeError: a server would have no GPU, or they cannot be shared out evenly.
    """
    inference = recipe.inference
    commands, ports = {}, set[int]()
    for number, gpus in enumerate(share_gpus(recipe)):
        while (port := find_free_port(HOST)) in ports:
            pass
        ports.add(port)
        if inference.engine == "embedded":
            sizes = {"--kv-tokens": inference.kv_tokens, "--max-num-seqs": inference.max_num_seqs}
            own = ["--dtype", recipe.model.dtype, *(str(word) for pair in sizes.items() for word in pair)]
        else:
            own = [SPLIT_OPTIONS[inference.engine], str(len(gpus))] if len(gpus) > 1 else []
        if recipe.model.max_model_len is not None and inference.engine != "sglang":  # which refuses what fills it
            own = ["--max-model-len", str(recipe.model.max_model_len), *own]
        words = make_server_command(
            inference.engine,
            str(resolve(recipe.model.path)),
            host=HOST,
            port=port,
            args=[*own, *shlex.split(inference.replica_args)],
            python=inference.replica_python or sys.executable,
        )
        environment = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
        if inference.engine == "vllm":
            environment["VLLM_SERVER_DEV_MODE"] = "1"  # opens the endpoint that takes weights
        commands[f"replica-{number}"] = ServerCommand(words, f"http://{HOST}:{port}", START_S, environment)
    return commands


def describe_replicas(recipe: Recipe, config: ModelConfig) -> list[str]:
    """Return a line for each server: the GPUs that it gets, and what its model and its own cache take.

    Raises:
        RecipeError: the GPUs cannot be shared out.
    """
    dtype = getattr(torch, recipe.model.dtype)
    memory = f"weights {format_bytes(parameter_bytes(config, dtype))}"
    if recipe.inference.engine == "embedded":
        memory += f", KV cache {format_bytes(cache_bytes(config, recipe.inference.kv_tokens, dtype))}"
    else:
        memory += ", and a cache of its own"
    return [
        f"replica-{number} ({recipe.inference.engine}) on {'GPU ' + ', '.join(gpus) if gpus else 'no GPU'}: {memory}"
        for number, gpus in enumerate(share_gpus(recipe))
    ]


def share_gpus(recipe: Recipe) -> list[list[str]]:
    """Return for each server the GPUs that it gets, as CUDA_VISIBLE_DEVICES names them; none if there is no GPU.

    Raises:
        RecipeError: the GPUs cannot be shared out evenly, or our own server would get more than one.
    """
    device, replicas = find_device(recipe.model.device), recipe.inference.replicas
    if not replicas or not torch.cuda.is_available():
        return [[] for _ in range(replicas)]
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = named.split(",") if named else list(map(str, range(torch.cuda.device_count())))
    left = [gpu for number, gpu in enumerate(visible) if device.type == "cpu" or number != (device.index or 0)]
    each, over = divmod(len(left), replicas)
    if each > 1 and recipe.inference.engine == "embedded":
        raise RecipeError(
            f"inference.replicas: our own server uses one GPU, and {replicas} would get {len(left)}; set "
            f"inference.replicas={len(left)}, or inference.engine=sglang or vllm"
        )
    if not each or over:
        raise RecipeError(
            f"inference.replicas: {replicas} servers cannot share {len(left)} GPUs evenly (the trainer has {device}); "
            "set another number (0 samples in the trainer's process), or hide GPUs with CUDA_VISIBLE_DEVICES"
        )
    return [left[number * each : (number + 1) * each] for number in range(replicas)]
