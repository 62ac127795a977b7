"""MemAgent's own section of a recipe, and where its presets are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from agentic.memagent.prompts import Order, Style
from core.config import Recipe, Section, WarmStartSection, load

PRESETS = Path(__file__).parent / "presets"

Probability = Annotated[float, Field(ge=0, le=1)]


class MemAgentSection(Section):
    chunk_tokens: PositiveInt = 5000
    max_memory_tokens: PositiveInt = 1024
    max_final_tokens: PositiveInt = 1024
    max_chunks: PositiveInt = 512
    overlong: Literal["error", "truncate_middle"] = "error"
    """A document of more than `max_chunks` chunks fails, or loses its middle as in the official trainer."""
    align: Literal["none", "sentence", "document"] = "none"
    """Where chunks may be cut: anywhere, between sentences, or between documents (blocks apart by a blank line)."""
    prompt_style: Style = "official"
    prompt_order: Order = "official"
    gate_update: bool = False
    """A memory update of the one word KEEP leaves the memory as it was."""
    train_update: bool = True
    train_final: bool = True


class DrillsAndDemonstrations(WarmStartSection):
    copy_steps: NonNegativeInt = 100
    """Steps on copying drills, which come first."""
    lookup_steps: NonNegativeInt = 150
    """Steps on lists of facts to be repeated in another order."""
    batch_size: PositiveInt = 16
    forget: Probability = 0.45
    distract: Probability = 0.1
    """How often the demonstrations forget the memory, or note a distractor (demonstrations.py)."""

    @property
    def total_steps(self) -> int:
        return self.copy_steps + self.lookup_steps + self.steps


class MemAgentRecipe(Recipe):
    memagent: MemAgentSection
    warm_start: DrillsAndDemonstrations | None = None


def load_recipe(preset: str, overrides: Sequence[str] = ()) -> MemAgentRecipe:
    return load(MemAgentRecipe, PRESETS, preset, overrides)
