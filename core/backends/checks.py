"""Checks what any job needs before it is submitted: each missing thing becomes a line with its fix.

What of a recipe only the embedded backend can do is refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from core.config import Recipe, RecipeError
from core.config.clusters import ClusterSection
from core.config.recipe import SERVER_URL
from core.data.hub_sets import is_hub_set
from core.options import EMBEDDED_ONLY, find_marked
from core.policy.server_process import find_url_problem
from core.policy.servers import VLLM
from core.runs.run_folder import flatten

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 10.0


def list_data(recipe: Recipe) -> dict[str, str]:
    """Return the data that a job reads, by their keys: whole paths, where this is not the folder in which it runs."""
    data = {"data.train": recipe.data.train, "data.eval": recipe.data.eval if recipe.run.eval_every else None}
    return {key: _place(path) for key, path in data.items() if path}


def _place(path: str) -> str:
    on_hub = is_hub_set(path) and not Path(path.partition(":")[0]).exists()
    return path if on_hub or Path.cwd() == REPOSITORY else str(Path.cwd() / path)


def find_missing_data(recipe: Recipe) -> Iterator[str]:
    """Name each file of `data` that is not there."""
    for key, path in list_data(recipe).items():
        if not (REPOSITORY / path).exists() and not is_hub_set(path):
            fix = f"Make it, as the README of {recipe.method} says, or name another: --set {key}=FILE"
            yield f"{key}: no file {REPOSITORY / path}. {fix}"


def find_silent_servers(recipe: Recipe, services: Mapping[str, str], served: Collection[str]) -> Iterator[str]:
    """Name each server that does not answer: `services` (key -> URL), and roles that the job does not serve itself."""
    ask = cache(find_url_problem)  # a server may play several roles
    places = [(key, url, url) for key, url in services.items()]  # (key, what the recipe names, what is asked)
    for role, place in recipe.roles.items():
        if re.match(SERVER_URL, place) and role not in served:
            places.append((f"roles.{role}", place, f"{place.removeprefix(VLLM).rstrip('/')}/health"))
    for key, named, url in places:
        if error := ask(url, PATIENCE_S):
            other = urlsplit(named)._replace(netloc="HOST:PORT").geturl()
            yield f"{key}: {url} does not answer ({error}). Start that server, or name another: --set {key}={other}"


def find_shared_problems(
    recipe: Recipe, cluster: ClusterSection, paths: Mapping[str, str], served: Collection[str] = ()
) -> Iterator[str]:
    """Name what is wrong with the `paths` of each node (key -> path), the data, the servers and the variables."""
    for key, path in paths.items():
        if not Path(path).is_absolute():
            yield f"{key}: {path} is relative, which means another place on each worker; give the whole path"
    yield from find_missing_data(recipe)
    services = {f"{cluster.key}.services.{name}": url for name, url in cluster.services.items()}
    yield from find_silent_servers(recipe, services, served)
    for name in cluster.env_from:
        if name not in os.environ:
            yield f"{cluster.key}.env_from: {name} is not set here; export it"


def find_placeholders(recipe: Recipe) -> Iterator[str]:
    """Name each value of a recipe that stands for one of the user's own, such as TAU2_DATA."""
    for key, value in flatten(recipe.dump()).items():
        if isinstance(value, str) and re.fullmatch(r"[A-Z][A-Z0-9_]+(/.*)?", value):
            yield f"{key}: {value} is a placeholder; --set {key}=..."


def refuse_embedded_only(recipe: Recipe, backend: str, also: Collection[str] = (), within: str = "") -> None:
    """Raise RecipeError if a key that is marked EMBEDDED_ONLY has another value than its default.

    `also` names keys that this backend has, too. `within` begins the keys that are looked at.
    """
    for key, value, default in find_marked(recipe, EMBEDDED_ONLY):
        if value != default and key not in also and key.startswith(within):
            text = default if isinstance(default, str) else json.dumps(default)
            raise RecipeError(f"{key} is for the embedded backend alone; on {backend} set {key}={text}")


def refuse_first(unfit: Mapping[str, object]) -> None:
    """Raise RecipeError with the first text whose value is true."""
    for why, here in unfit.items():
        if here:
            raise RecipeError(why)


def refuse_on_cluster(
    recipe: Recipe, backend: str, engine: str, also: Collection[str] = (), served: Collection[str] | None = None
) -> None:
    """Raise RecipeError for what no backend of a cluster can do, or not with this rollout engine.

    The job itself serves the roles in `served`; None says that it cannot serve any.
    """
    refuse_embedded_only(recipe, backend, also)
    top_p, top_k = recipe.rollout.top_p, recipe.rollout.top_k
    seeds, dtype, trained = recipe.run.seeds, recipe.model.dtype, recipe.trained_roles
    unfit = {
        f"{backend} trains one seed per job; set run.seeds=[{seeds[0]}] and another --out each": len(seeds) > 1,
        f"{backend} trains in bfloat16 and model.dtype is {dtype}; set model.dtype=bfloat16": dtype != "bfloat16",
        f"rollout.top_p is {top_p}; on {backend} rows are trained without top-p, set it to 1": top_p != 1,
        f"rollout.top_k is {top_k}, and vLLM's log-probs are of the tokens it leaves, while rows are trained "
        "without it; set it to -1": top_k > 0 and engine == "vllm",
        f"roles.{''.join(trained[:1])} is trained beside the policy, which {backend} has no place for; let it be "
        "`policy`, or freeze it": trained,
    }
    refuse_first(unfit)
    for role, place in recipe.roles.items():
        if place.startswith("model:") and role not in (served or ()):
            serve = "" if served is None else f"serve it by slime.sglang.models and slime.roles.{role}, or "
            raise RecipeError(
                f"roles.{role} is a model in the trainer's own process, which {backend} has no place for; {serve}set "
                f"roles.{role}=http://HOST:PORT"
            )
