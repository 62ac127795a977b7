"""The published scores on AIME 2024, and the protocols behind them as settings.

`agentflow released` is the preset `published` of AgentFlow with what no preset says: test/aime24/run.sh of
lupantech/AgentFlow at b940064 (models of the roles and tools in lines 8 to 12, --max_time 300 in line 77),
engine/vllm.py lines 119 and 122, and test/calculate_score_unified.py line 165; the number of samples is the paper's
(Table 2). `slime-agentic` is its preset `seed`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from agentic.agentflow.config import AgentFlowRecipe
from benchmarks.harness.plan import drop_ports
from benchmarks.harness.published import Protocol, Settings, read_scores
from core.report import PublishedScore
from core.rollout.method import method_spec
from core.types import Sampling

RELEASED, SLIME, SINGLE = "agentflow released", "slime-agentic", "single call"
RELEASED_MODELS = {
    "fixed": "Qwen2.5-7B-Instruct",
    "executor": "Qwen2.5-7B-Instruct",
    "verifier": "Qwen2.5-7B-Instruct",
    "base_generator": "gpt-4o-mini",
    "coder": "Qwen2.5-Coder-7B-Instruct",
    "judge": "gpt-4o, in its own words about a multiple choice",
}
RELEASED_TOOLS = {
    "Generalist_Solution_Generator_Tool": "base_generator",
    "Python_Code_Generator_Tool": "coder, and exec without isolation",
    "Ground_Google_Search_Tool": "gemini-2.5-flash with Google",
    "Wikipedia_RAG_Search_Tool": "Wikipedia with gpt-4o-mini",
}
_ESSENTIAL = frozenset({"prompts", "max_steps"})


def published_scores(data: str, budget: int) -> list[PublishedScore]:
    """Return the published scores, beside cells with `budget` tokens for a call."""
    return [replace(row, length=budget) for row in read_scores("aime", data)]


@cache
def protocol(variant: str, preset: str) -> Protocol:
    """Return the protocol that a variant under a preset is compared with."""
    if variant == "single":
        asked = {"prompt": "the problem alone", "graded by": "gpt-4o", "samples of a problem": 1}
        return Protocol(SINGLE, asked, frozenset({"prompt"}))
    slime = preset == "seed"
    recipe = method_spec("agentflow").load("seed" if slime else "published")
    sampling = Sampling(temperature=recipe.run.eval_temperature, top_p=recipe.run.eval_top_p)
    settings = agent_settings(recipe, recipe.agentflow.planner.next_step.max_tokens, sampling, 1 if slime else 3)
    if slime:
        return Protocol(SLIME, settings, _ESSENTIAL)
    models = {f"model of {role}": model for role, model in RELEASED_MODELS.items()}
    tools = {f"tool {name}": tool for name, tool in RELEASED_TOOLS.items()}
    other = {
        "step without a tool": "kept without the reason, then verified",
        "several calls in a command": "all run",
        "verdict without a conclusion": "stops where the text has the word `stop`",
        "time for the steps": "no step begins after 300 s",
    }
    return Protocol(RELEASED, {**settings, **models, **tools, **other}, _ESSENTIAL)


def agent_settings(recipe: AgentFlowRecipe, budget: int, sampling: Sampling, samples: int) -> Settings:
    """Return what an agent's score follows from, with our models and tools."""
    section = recipe.agentflow
    roles = dict.fromkeys(role.role for _, role in section.every_role())
    return {
        "prompts": section.format,
        "max_steps": section.max_steps,
        "max_total_tokens": section.max_total_tokens,
        "tokens of a call": budget,
        "reward": section.reward,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "frequency penalty": section.planner.next_step.frequency_penalty,
        "samples of a problem": samples,
        "step without a tool": "shown with the reason, not verified",
        "several calls in a command": "the last one runs",
        "verdict without a conclusion": "goes on",
        "time for the steps": "no limit",
        **{f"model of {role}": drop_ports(recipe.roles.get(role)) for role in roles if role != "policy"},
        **{f"tool {name}": tool.path for name, tool in section.tools.items()},
    }


def single_settings(message: str, samples: int) -> dict[str, Any]:
    """Return what a single call's score follows from."""
    return {
        "prompt": message,
        "graded by": "the rules for numbers and math-verify, on the last box",
        "samples of a problem": samples,
    }
