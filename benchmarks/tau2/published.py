"""The published scores on tau2-bench, and the protocol behind them as settings.

Sources: the leaderboard's submissions/toolorchestra_nvidia_2025-12-02 (sierra-research/tau2-bench at a2c0247);
ToolOrchestra, evaluation/tau2-bench of Weili-0234/ToolOrchestra at 8bb9e69: run.py, and tau2/utils/llm_utils.py lines
434 (prompt), 441 (what gpt-5 reads), 576 (context) and 594 (temperature); arXiv 2511.21689, Table 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentic.toolorchestra.config import ToolOrchestraRecipe
from benchmarks.harness.plan import EvalCell
from benchmarks.harness.published import Protocol, Settings

ALL = "tau2"
"""Names all tasks of retail, airline and telecom together."""

COMPAT, STANDARD = "toolorchestra-compat", "standard"


def protocol(name: str) -> Protocol:
    """Return what the published scores of COMPAT and STANDARD follow from."""
    experts = {"expert-1": "gpt-5", "expert-2": "gpt-5-mini", "expert-3": "Qwen/Qwen3-32B"} if name == COMPAT else {}
    settings = {
        "protocol": name,
        "tau2": "0.1.3",
        "user": "gpt-5",
        "judge": "gpt-5",
        "temperature": 1.0,
        "split": "base",
        "trials": 1,
        "max_steps": 200,
        "max_tokens": 8000,
        "tokens of the context": 23000,
        **{f"model of {expert}": model for expert, model in experts.items()},
        "malformed call": "ends the conversation",
        "several calls at once": "one message",
        "failed conversations": "left out",
    }
    if name == COMPAT:
        settings |= {
            "policy that experts read": "tau2's for gpt-5 and gpt-5-mini, the orchestrator's for Qwen3-32B",
            "added to what gpt-5 reads": "that the last message may be wrong",
        }
    return Protocol(name, settings, frozenset({"protocol"}))


def our_settings(cell: EvalCell, recipe: ToolOrchestraRecipe, worlds: Mapping[str, Any], version: str) -> Settings:
    """Return the settings of a cell of ours, in the words of `protocol`."""
    section = recipe.toolorchestra

    def name_model(alias: str | None) -> str | None:
        served = section.model_mapping.get(alias or "", alias)
        model = section.models.get(served or "")
        return served if model is None else model.name or served

    settings = {
        "protocol": cell.variant,
        "tau2": version,
        "user": name_model(worlds["user"]),
        "judge": name_model(worlds["judge"]),
        "temperature": cell.sampling.temperature,
        "split": cell.settings["split"],
        "trials": cell.repeats,
        "max_steps": worlds["max_steps"],
        "max_tokens": section.max_tokens,
        "tokens of the context": section.budget.total,
        **{f"model of {expert}": name_model(expert) for expert in section.experts},
        "malformed call": "shown to the agent, does not reach tau2",
        "several calls at once": "as many messages",
        "failed conversations": "not solved",
    }
    if cell.variant == COMPAT:
        settings |= {"policy that experts read": "tau2's", "added to what gpt-5 reads": "nothing"}
    return settings
