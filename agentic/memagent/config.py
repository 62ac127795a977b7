"""Defines MemAgent's section of a recipe and the folder of its presets."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import PositiveInt

from agentic.memagent.prompts import EMPTY_MEMORY, AnswerFormat, Order, Style
from core.config import Recipe, Section

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
    empty_memory: str = EMPTY_MEMORY
    """Stands in the first prompt in place of a memory. Small models may copy the published words into their own."""
    gate_update: bool = False
    """Lets the policy keep its memory by writing the one word KEEP."""
    train_update: bool = True
    train_final: bool = True


class MemAgentRecipe(Recipe):
    memagent: MemAgentSection
