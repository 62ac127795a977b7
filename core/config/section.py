"""What every section of a recipe is: frozen, typed, and an unknown key is an error."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class RecipeError(ValueError):
    """A preset or an override that cannot be used; the message names file, key and fix."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
