"""Defines MemAgent's section of a recipe and the folder of its presets."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from agentic.memagent.prompts import AnswerFormat, Order, Style
from core.config import Recipe, Section, WarmStartSection
from core.options import Probability

PRESETS = Path(__file__).parent / "presets"


class MemAgentSection(Section):
    chunk_tokens: PositiveInt = 5000
    max_memory_tokens: PositiveInt = 1024
    max_final_tokens: PositiveInt = 1024
    max_chunks: PositiveInt = 512
    overlong: Literal["error", "truncate_middle"] = "error"
    """Says what happens to a document of more than `max_chunks` chunks: the rollout fails, or the document loses its
    middle as in the official trainer."""
    align: Literal["none", "sentence", "document"] = "none"
    """Says where a chunk may end: anywhere, between sentences, or between documents (`Document N:` after a blank
    line)."""
    prompt_style: Style = "official"
    prompt_order: Order = "official"
    answer_format: AnswerFormat = "boxed"
    """Says how the final prompt asks for the answer, which decides where the reward looks for it."""
    gate_update: bool = False
    """Lets the policy keep its memory by writing the one word KEEP."""
    train_update: bool = True
    train_final: bool = True


class MemAgentWarmStart(WarmStartSection):
    copy_steps: NonNegativeInt = 0
    """Counts the steps on copying drills, which come first."""
    lookup_steps: NonNegativeInt = 0
    """Counts the steps on lists of facts that are repeated in another order; they come second."""
    batch_size: PositiveInt = 16
    keep: Probability = 0.07
    """Says how often the annotator keeps a fact that does not matter (tiny/demonstrations.py)."""

    @property
    def total_steps(self) -> int:
        return self.copy_steps + self.lookup_steps + self.steps


class MemAgentRecipe(Recipe):
    memagent: MemAgentSection
    warm_start: MemAgentWarmStart | None = None
