"""Recipes: a run described as typed data."""

from core.config.load import load, replace_keys
from core.config.recipe import (
    AlgorithmSection,
    ExperimentSection,
    HealthSection,
    LoRASection,
    OptimizerSection,
    Recipe,
    RejectionSection,
    SupervisedSection,
    WarmStartSection,
)
from core.options import RecipeError, Section

__all__ = [
    "AlgorithmSection",
    "ExperimentSection",
    "HealthSection",
    "LoRASection",
    "OptimizerSection",
    "Recipe",
    "RecipeError",
    "RejectionSection",
    "Section",
    "SupervisedSection",
    "WarmStartSection",
    "load",
    "replace_keys",
]
