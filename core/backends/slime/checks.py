"""Checks what must exist before a job is submitted: each missing thing becomes a line with its fix."""

from __future__ import annotations

import difflib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from core.backends.slime.flags import cluster
from core.backends.slime.job import REPOSITORY, RayCommands, model_file
from core.config import Recipe
from core.config.slime import SlimeSection

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PATIENCE_S = 10.0


def find_problems(recipe: Recipe) -> list[str]:
    """List everything except Ray that keeps the job from starting.

    Raises:
        RecipeError: the recipe cannot run on slime at all.
    """
    slime = cluster(recipe)
    return [
        *_paths(slime),
        *_sources(slime),
        *_checkpoints(recipe, slime),
        *_data(recipe),
        *_services(recipe),
        *(f"slime.env_from: {name} is not set here; export it" for name in slime.env_from if name not in os.environ),
    ]


def find_head_problem(slime: SlimeSection) -> str | None:
    """Say why other nodes cannot reach the head node; None if they can."""
    if slime.all_nodes > 1 and slime.ray.head in LOOPBACK:
        return f"slime.ray.head is {slime.ray.head}, which other nodes cannot reach; --set slime.ray.head=ADDRESS"
    return None


def find_ray_problem(slime: SlimeSection) -> str | None:
    """Say why no Ray cluster answers, with the commands that start one; None if one answers."""
    if error := get_error(f"{slime.ray.url}/api/version"):
        commands = "\n".join(f"    {line}" for line in RayCommands.for_cluster(slime).lines())
        return (
            f"no Ray cluster answers at {slime.ray.url} ({error}). Start one, with {slime.framework}'s Python:\n"
            f"{commands}\n"
            "  or give --start-ray, which starts the head; or name a running one: --set slime.ray.head=HOST"
        )
    return None


def find_running_job(slime: SlimeSection, recipe: Path) -> str | None:
    """Name a Ray job that still trains by the file `recipe`; a second one would write the same checkpoints.

    Ctrl-C ends the launcher but not its job, so the lock of the run folder cannot tell.
    """
    with urlopen(f"{slime.ray.url}/api/jobs/", timeout=PATIENCE_S) as reply:
        jobs = json.load(reply)
    for job in jobs:
        if job["status"] in ("PENDING", "RUNNING") and str(recipe) in (job["entrypoint"] or ""):
            name, address = job["submission_id"] or job["job_id"], f"--address={slime.ray.url}"
            return (
                f"the Ray job {name} trains in {recipe.parent} already. Watch it: ray job logs {address} --follow "
                f"{name}; or end it first: ray job stop {address} {name}"
            )
    return None


def get_error(url: str) -> str | None:
    """Say why a GET of `url` fails; None if it succeeds."""
    try:
        with urlopen(url, timeout=PATIENCE_S):  # an HTTP status of 400 or more raises
            return None
    except (URLError, OSError, ValueError) as error:
        return str(error)


def _paths(slime: SlimeSection) -> Iterator[str]:
    # Workers of Ray have working directories of their own, so every path must be absolute.
    places = {"root": slime.source, "megatron": slime.megatron}
    places |= {f"checkpoint.{key}": path for key, path in slime.checkpoint if path is not None}
    places |= {f"sglang.models.{name}.path": model.path for name, model in slime.sglang.models.items()}
    for key, path in places.items():
        if not Path(path).is_absolute():
            yield f"slime.{key}: {path} is relative, which means another place on each worker; give the whole path"


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
    if shutil.which("ray") is None:
        yield f"no command `ray`. Run inside {name}'s image, or pip install ray"
    if problem := find_head_problem(slime):
        yield problem


def _checkpoints(recipe: Recipe, slime: SlimeSection) -> Iterator[str]:
    hf, ref, load = Path(slime.checkpoint.hf), Path(slime.checkpoint.ref_load), slime.checkpoint.load
    if not (hf / "config.json").is_file():
        yield f"slime.checkpoint.hf: no model at {hf}. Download it: hf download {recipe.model.path} --local-dir {hf}"
    if not (ref / "latest_checkpointed_iteration.txt").is_file():
        yield (
            f"slime.checkpoint.ref_load: no torch_dist checkpoint at {ref}. Make it: "
            f"tokentrue convert to-dist --hf {hf} --dist {ref} --model {slime.model} --slime {slime.source} "
            f"--megatron {slime.megatron}"
        )
    if load is not None and not Path(load).is_dir():
        yield f"slime.checkpoint.load: no folder {load}. Leave it out to start from ref_load and resume from save"
    for name, model in slime.sglang.models.items():
        if not (Path(model.path) / "config.json").is_file():
            yield f"slime.sglang.models.{name}.path: no model at {model.path}. Download it there with `hf download`"


def _data(recipe: Recipe) -> Iterator[str]:
    files = {"train": recipe.data.train, "eval": recipe.data.eval if recipe.run.eval_every else None}
    for key, path in files.items():
        if path and not (REPOSITORY / path).is_file():
            yield f"data.{key}: no file {REPOSITORY / path}. See agentic/{recipe.method}/README.md and RESULTS.md"


def _services(recipe: Recipe) -> Iterator[str]:
    slime = cluster(recipe)
    urls = {f"slime.services.{name}": url for name, url in slime.services.items()}
    for role, place in recipe.roles.items():
        if place.startswith("http") and role not in slime.roles:
            urls[f"roles.{role}"] = f"{place.rstrip('/')}/health"
    answers = {url: get_error(url) for url in dict.fromkeys(urls.values())}
    for key, url in urls.items():
        if error := answers[url]:
            named = url.removesuffix("/health") if key.startswith("roles.") else url  # as the recipe does
            other = urlsplit(named)._replace(netloc="HOST:PORT").geturl()
            yield f"{key}: {url} does not answer ({error}). Start that server, or name another: --set {key}={other}"
