"""Defines the section `rlm` of a recipe: the limits of a rollout, of its sub-calls, and of the programs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from core.config import ConversationRecipe, Section
from core.sandbox import Backend, SandboxLimits

PRESETS = Path(__file__).parent / "presets"


class RLMSection(Section):
    context_tokens: PositiveInt
    """Limits the root's conversation: the question, its replies, and what it is shown of its programs' output."""
    max_tokens: PositiveInt = 4096
    """Limits the tokens of one reply of the root."""
    max_programs: PositiveInt = 20
    """Limits the programs of a rollout. After the last one the policy is told to answer."""
    shown_characters: PositiveInt = 20000
    """Limits what the root reads of a program's output: its beginning, and how long it is."""
    subcall_context_tokens: PositiveInt
    """Limits prompt plus reply of a sub-call. A longer prompt is not asked, and the program reads why."""
    max_subcall_tokens: PositiveInt = 4096
    max_subcalls: NonNegativeInt = 64
    """Limits the sub-calls of a rollout. A program reads of those beyond that they were not made."""
    train_subcalls: bool = True
    """Trains the sub-calls, beside the root's replies, which always are."""
    explain: bool = True
    """Tells the policy how it can look into the document. A policy that was trained to do so needs no word of it."""
    sandbox: SandboxLimits = SandboxLimits(timeout_s=60.0, output_bytes=16 << 20, keep_bytes=16 << 20)
    """Limits a rollout's programs, all together: each runs after those before it, which run again. What one asks leaves
    the sandbox as output, so `keep_bytes` must hold all prompts of a batch."""
    backend: Literal["auto"] | Backend = "auto"
    """Names the isolation (core/sandbox)."""
    remember: NonNegativeInt = 0
    """Says how many programs' results are kept for equal programs on the same document."""


class RLMRecipe(ConversationRecipe):
    rlm: RLMSection
