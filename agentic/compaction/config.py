"""Defines the section of a compacting agent in a recipe, and the folder of its presets."""

from __future__ import annotations

from pathlib import Path

from pydantic import PositiveInt

from core.config import Recipe, Section

PRESETS = Path(__file__).parent / "presets"


class CompactionSection(Section):
    context_tokens: PositiveInt
    """Limits prompt plus completion of every call. A conversation that would outgrow it is compacted."""
    max_action_tokens: PositiveInt = 256
    max_summary_tokens: PositiveInt = 1024
    train_summary: bool = True
    """Trains the summaries, beside the actions and the answer, which always are."""


class CompactionRecipe(Recipe):
    compaction: CompactionSection
