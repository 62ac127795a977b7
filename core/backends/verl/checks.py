"""Checks what verl's job needs on this machine: each missing thing becomes a line with its fix."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

from core.backends.verl.overrides import MODEL
from core.config import Recipe
from core.config.clusters import VerlSection
from core.hub import is_hub_id, read_json

VERSION = "0.9.1"
"""Names the release of verl whose trainers ours extend. Its methods that they replace are no public interface."""
POSITIONS = f"{MODEL}.override_config.max_position_embeddings"


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
