"""The published scores of CodeScout's localisation, and what is known of the protocol behind them, as settings.

Sources: the model cards of OpenHands/CodeScout-1.7B, -4B and -14B (scores; limits of the training), and
OpenHands/codescout at 974238b (prompts, tools, reward). The evaluation itself is in a fork of OpenHands/benchmarks that
could not be read: what it sets is `not found` below.
"""

from __future__ import annotations

from typing import Literal, get_args

from agentic.codescout.config import CodeScoutRecipe
from benchmarks.harness.published import Protocol, Settings
from core.types import Sampling

Data = Literal["swebench-verified", "swebench-pro", "swebench-lite"]
DATA: tuple[Data, ...] = get_args(Data)
NOT_FOUND = "not found"
_NOT_SAID = (
    "instances without a gold function", "max_turns", "max_tokens", "context_tokens", "temperature", "top_p"
)  # fmt: skip
_ESSENTIAL = frozenset({"tools", "score"})


def protocol(data: str) -> Protocol:
    """Return what the published scores of a data set follow from, as far as it is known."""
    settings = {
        "tools": "bash and localization_finish",
        "score": "F1 of each instance, averaged",
        "prompts": "released",
        "gold places": "file_changes of the released data sets",
        **dict.fromkeys(_NOT_SAID, NOT_FOUND),
    }
    return Protocol(f"codescout {data}", settings, _ESSENTIAL)


def our_settings(recipe: CodeScoutRecipe, sampling: Sampling) -> Settings:
    """Return the settings of a cell of ours, in the words of `protocol`."""
    section = recipe.codescout
    return {
        "tools": "bash and localization_finish",
        "score": "F1 of each instance, averaged",
        "prompts": "ours, by the released rules" if section.prompt == "full" else "the issue alone",
        "gold places": "file_changes of the record (agentic/codescout/gold.py)",
        "instances without a gold function": "0 in function_f1",
        "max_turns": section.max_turns,
        "max_tokens": section.max_tokens,
        "context_tokens": section.context_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
