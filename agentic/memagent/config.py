"""MemAgent's own section of a recipe, and where its presets are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import PositiveInt

from agentic.memagent.prompts import Order, Style
from core.config import Recipe, Section, load

PRESETS = Path(__file__).parent / "presets"


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


class WarmStartSection(Section):
    """Supervised cold start of a small model made from nothing; only `tiny` has one."""

    seed: int = 0
    copy_steps: int = 100
    """Steps on copying drills, which come first."""
    lookup_steps: int = 150
    """Steps on lists of facts to be repeated in another order."""
    steps: int = 800
    """Steps on demonstrations of single turns."""
    batch_size: int = 16
    lr: float = 2e-3
    forget: float = 0.45
    distract: float = 0.1
    """How often the demonstrations forget the memory, or note a distractor (demonstrations.py)."""


class MemAgentRecipe(Recipe):
    memagent: MemAgentSection
    warm_start: WarmStartSection | None = None


def load_recipe(preset: str, overrides: Sequence[str] = ()) -> MemAgentRecipe:
    return load(MemAgentRecipe, PRESETS, preset, overrides)
