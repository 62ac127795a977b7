"""Recipes: a run described as typed data."""

from core.config.recipe import (
    AlgorithmSection,
    ConversationRecipe,
    ExperimentSection,
    HealthSection,
    LoRASection,
    OptimizerSection,
    Recipe,
    RejectionSection,
    SupervisedSection,
    WarmStartSection,
)
from core.options import RecipeError, Section, import_function, import_functions

__all__ = [
    "AlgorithmSection",
    "ConversationRecipe",
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
    "import_function",
    "import_functions",
]
