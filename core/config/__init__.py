"""Recipes: a run described as typed data."""

from core.config.load import load
from core.config.recipe import (
    AlgorithmSection,
    OptimizerSection,
    Recipe,
    RejectionSection,
    SupervisedSection,
    WarmStartSection,
)
from core.options import RecipeError, Section

__all__ = [
    "AlgorithmSection",
    "OptimizerSection",
    "Recipe",
    "RecipeError",
    "RejectionSection",
    "Section",
    "SupervisedSection",
    "WarmStartSection",
    "load",
]
