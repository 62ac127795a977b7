"""Refuses what of a recipe only the embedded backend can do."""

from __future__ import annotations

import json
from collections.abc import Collection

from core.config import Recipe, RecipeError
from core.options import EMBEDDED_ONLY, find_marked


def refuse_embedded_only(recipe: Recipe, backend: str, also: Collection[str] = (), within: str = "") -> None:
    """Raise RecipeError if a key that is marked EMBEDDED_ONLY has another value than its default.

    `also` names keys that this backend has, too. `within` begins the keys that are looked at.
    """
    for key, value, default in find_marked(recipe, EMBEDDED_ONLY):
        if value != default and key not in also and key.startswith(within):
            text = default if isinstance(default, str) else json.dumps(default)
            raise RecipeError(f"{key} is for the embedded backend alone; on {backend} set {key}={text}")


def refuse_on_cluster(
    recipe: Recipe, backend: str, also: Collection[str] = (), served: Collection[str] | None = None
) -> None:
    """Raise RecipeError for what no backend of a cluster can do.

    The job itself serves the roles in `served`; None says that it cannot serve any.
    """
    refuse_embedded_only(recipe, backend, also)
    if len(recipe.run.seeds) > 1:
        raise RecipeError(
            f"{backend} trains one seed per job; set run.seeds=[{recipe.run.seeds[0]}] and another --out each"
        )
    if recipe.model.dtype != "bfloat16":
        raise RecipeError(
            f"{backend} trains in bfloat16 and model.dtype is {recipe.model.dtype}; set model.dtype=bfloat16"
        )
    if recipe.rollout.top_p != 1:
        raise RecipeError(
            f"rollout.top_p is {recipe.rollout.top_p}; on {backend} rows are trained without top-p, set it to 1"
        )
    if recipe.trained_roles:
        raise RecipeError(
            f"roles.{recipe.trained_roles[0]} is trained beside the policy, which {backend} has no place for; let it "
            "be `policy`, or freeze it"
        )
    for role, place in recipe.roles.items():
        if place.startswith("model:") and role not in (served or ()):
            serve = "" if served is None else f"serve it by slime.sglang.models and slime.roles.{role}, or "
            raise RecipeError(
                f"roles.{role} is a model in the trainer's own process, which {backend} has no place for; {serve}set "
                f"roles.{role}=http://HOST:PORT"
            )
