"""Start a method on slime or vime from a preset.

    tokentrue train METHOD --backend slime|vime --preset NAME --out DIR [--set key.path=value ...]
                           [--dry-run] [--start-ray]

The dry run prints the script that would run and needs neither of them nor a GPU.
"""

from __future__ import annotations

from core.backends.job import launch
from core.backends.slime.job import make_job
from core.config import Recipe, RecipeError


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
