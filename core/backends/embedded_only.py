"""Refuses the keys of a recipe that only the embedded backend has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from core.config import Recipe, RecipeError
from core.options import EMBEDDED_ONLY, Section


def refuse_embedded_only(recipe: Recipe, backend: str) -> None:
    """Raise RecipeError if a key that is marked EMBEDDED_ONLY has another value than its default."""
    for key, value, default in _find_marked(recipe, ""):
        if value != default:
            text = default if isinstance(default, str) else json.dumps(default)
            raise RecipeError(f"{key} is for the embedded backend alone; on {backend} set {key}={text}")


def _find_marked(section: Section, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield (key, value, default) of every marked key."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if EMBEDDED_ONLY in field.metadata:
            yield prefix + name, value, field.default
        elif isinstance(value, Section):
            yield from _find_marked(value, f"{prefix}{name}.")
