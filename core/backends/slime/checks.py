"""Checks what slime's job needs before it is submitted: each missing thing becomes a line with its fix."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Iterator
from pathlib import Path

from core.backends import checks
from core.backends.slime.flags import cluster
from core.backends.slime.job import model_file, ray_cluster
from core.config import Recipe
from core.config.slime import SlimeSection


def find_problems(recipe: Recipe) -> list[str]:
    """List everything except Ray that keeps the job from starting.

    Raises:
        RecipeError: the recipe cannot run on slime at all.
    """
    slime = cluster(recipe)
    paths = {"root": slime.source, "megatron": slime.megatron}
    paths |= {f"checkpoint.{key}": path for key, path in slime.checkpoint if path is not None}
    paths |= {f"sglang.models.{name}.path": model.path for name, model in slime.sglang.models.items()}
    services = {f"slime.services.{name}": url for name, url in slime.services.items()}
    return [
        *checks.find_relative_paths({f"slime.{key}": path for key, path in paths.items()}),
        *_sources(slime),
        *_checkpoints(recipe, slime),
        *checks.find_missing_data(recipe),
        *checks.find_silent_servers(recipe, services, slime.roles),
        *checks.find_unset_variables("slime.env_from", slime.env_from),
    ]


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
    if problem := ray_cluster(slime).find_head_problem("slime.ray"):
        yield problem


def _checkpoints(recipe: Recipe, slime: SlimeSection) -> Iterator[str]:
    hf, ref = Path(slime.checkpoint.hf), Path(slime.checkpoint.ref_load)
    if not (hf / "config.json").is_file():
        yield f"slime.checkpoint.hf: no model at {hf}. Download it: hf download {recipe.model.path} --local-dir {hf}"
    if not (ref / "latest_checkpointed_iteration.txt").is_file():
        yield (
            f"slime.checkpoint.ref_load: no torch_dist checkpoint at {ref}. Make it: "
            f"tokentrue convert to-dist --hf {hf} --dist {ref} --model {slime.model} --slime {slime.source} "
            f"--megatron {slime.megatron}"
        )
    for name, model in slime.sglang.models.items():
        if not (Path(model.path) / "config.json").is_file():
            yield f"slime.sglang.models.{name}.path: no model at {model.path}. Download it there with `hf download`"
