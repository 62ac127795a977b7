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
from core.report import PublishedScore

ALL = "tau2"
"""Names all tasks of retail, airline and telecom together."""

COMPAT, STANDARD = "toolorchestra-compat", "standard"
LEADERBOARD = "tau2 leaderboard, submitted 2025-12-18, 1 trial, tau2 0.1.3"
PAPER = "arXiv 2511.21689, Table 1"
CARD = "slime-agentic's model card; which domains, user and experts is not stated"
TASKS = {"tau2-retail": 114, "tau2-airline": 50, "tau2-telecom": 114, ALL: 278}
SCORES = (
    # name, model, protocol, data, per cent, source
    ("Orchestrator-8B", "Orchestrator-8B", COMPAT, "tau2-retail", 84.2, LEADERBOARD),
    ("Orchestrator-8B", "Orchestrator-8B", COMPAT, "tau2-airline", 56.0, LEADERBOARD),
    ("Orchestrator-8B", "Orchestrator-8B", COMPAT, "tau2-telecom", 88.6, LEADERBOARD),
    ("Orchestrator-8B", "Orchestrator-8B", COMPAT, ALL, 80.2, PAPER),
    ("Qwen3-8B with experts, untrained", "Qwen3-8B", COMPAT, ALL, 72.3, PAPER),
    ("Qwen3-8B without experts", "Qwen3-8B", STANDARD, ALL, 40.7, PAPER),
)
UNPLACED = (
    ("Qwen3-8B, untrained", 27.8),
    ("ToolOrchestra_Slime_Agentic_Qwen3_8B", 38.8),
)
"""Holds scores whose protocol is not stated: no cell of ours stands beside them."""


def published_scores() -> list[PublishedScore]:
    """Return the published scores; a protocol is a variant too."""
    scores = [
        PublishedScore(name, data, 0, percent / 100, source, protocol, "official", model, protocol, TASKS[data])
        for name, model, protocol, data, percent, source in SCORES
    ]
    return scores + [
        PublishedScore(name, ALL, 0, percent / 100, CARD, COMPAT, protocol="not stated") for name, percent in UNPLACED
    ]


def protocol(name: str) -> Protocol:
    """Return what the published scores of COMPAT and STANDARD follow from."""
    experts = {"expert-1": "gpt-5", "expert-2": "gpt-5-mini", "expert-3": "Qwen/Qwen3-32B"} if name == COMPAT else {}
    settings = {
        "protocol": name,
        "tau2": "0.1.3",
        "user": "gpt-5",
        "judge": "gpt-5",
        "temperature": 1.0,
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
