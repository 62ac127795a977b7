"""Defines the section `retool` of a recipe: the limits of a rollout, and the sandbox that runs its programs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from core.config import ConversationRecipe, Section
from core.sandbox import Backend, SandboxLimits

PRESETS = Path(__file__).parent / "presets"


Format = Literal["tags", "fences", "calls"]


class ReToolSection(Section):
    format: Format = "tags"
    """Chooses how a program is written (formats.py): in the paper's tags, in Python fences, or as a call of a tool.
    `tokentrue data check` shows which one a model knows."""
    context_tokens: PositiveInt
    """Limits the whole conversation: the question, all replies, and all that the interpreter shows."""
    max_tokens: PositiveInt = 8192
    """Limits the tokens of one reply."""
    max_turns: PositiveInt = 16
    """Limits the replies of a rollout, the one with the answer included."""
    explain_tags: bool = True
    """Puts the instructions of prompts.py behind the question. A policy that was trained on the format needs none."""
    sandbox: SandboxLimits = SandboxLimits(timeout_s=30.0, keep_bytes=4096)
    """Limits a program. `keep_bytes` says how much of its output the policy reads: half the head, half the tail."""
    backend: Literal["auto"] | Backend = "auto"
    """Names the isolation (core/sandbox)."""
    remember: NonNegativeInt = 0
    """Says how many programs' results are kept and shown again. It needs programs without randomness."""


class ReToolRecipe(ConversationRecipe):
    retool: ReToolSection
