"""Defines the section `codescout` of a recipe: the limits of a search, its reward, and the sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from agentic.codescout.prompts import Prompt
from core.config import ConversationRecipe, Section
from core.sandbox.workspace import WorkspaceLimits

PRESETS = Path(__file__).parent / "presets"


class CodeScoutSection(Section):
    prompt: Prompt = "full"
    """Chooses the first messages (prompts.py): all instructions, or the issue alone, for small models."""
    max_turns: PositiveInt
    """Limits the turns of a rollout, that of the answer included."""
    max_calls: PositiveInt = 5
    """Limits the commands of a turn; those beyond it are not run, and the policy is told so."""
    max_tokens: PositiveInt = 8192
    """Limits the tokens of a turn."""
    context_tokens: PositiveInt
    """Limits prompt plus completion of every call."""
    turns_weight: NonNegativeFloat = 0.0
    """Adds this to the reward of a rollout of exactly `rewarded_turns` turns, whatever it answers."""
    rewarded_turns: NonNegativeInt = 0
    backend: Literal["auto", "bubblewrap", "landlock"] = "auto"
    """Says what isolates the commands."""
    workspace: WorkspaceLimits = WorkspaceLimits()
    command_timeout_s: PositiveFloat = 60.0
    output_chars: PositiveInt = 8000
    """Limits what the policy is shown of an output: half from its head, half from its tail."""

    @model_validator(mode="after")
    def _weight_goes_with_turns(self) -> Self:
        if self.turns_weight and not self.rewarded_turns:
            raise ValueError("turns_weight: no rollout has 0 turns; set rewarded_turns, too")
        return self


class CodeScoutRecipe(ConversationRecipe):
    codescout: CodeScoutSection
