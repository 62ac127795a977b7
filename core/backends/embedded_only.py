"""Refuses the keys of a recipe that only the embedded backend has."""

from __future__ import annotations

import json

from core.config import Recipe, RecipeError
from core.options import EMBEDDED_ONLY, find_marked


def refuse_embedded_only(recipe: Recipe, backend: str) -> None:
    """Raise RecipeError if a key that is marked EMBEDDED_ONLY has another value than its default."""
    for key, value, default in find_marked(recipe, EMBEDDED_ONLY):
        if value != default:
            text = default if isinstance(default, str) else json.dumps(default)
            raise RecipeError(f"{key} is for the embedded backend alone; on {backend} set {key}={text}")
