"""The three named protocols, and the agent that does nothing. One table row never mixes two of them.

| protocol | prompt, tools | experts |
|---|---|---|
| standard | tau2's own, untouched | none |
| experts | the same, and `call_expert` | as the recipe maps them |
| toolorchestra-compat | rewritten as in ToolOrchestra's evaluation (agentic/toolorchestra/tau2/compat.py) | the same |

The last two are what tau2's leaderboard calls custom. A conversation may take 200 steps and 10 tool errors, as there.

Sources of the published scores and their settings: the leaderboard's submissions/toolorchestra_nvidia_2025-12-02
(sierra-research/tau2-bench at a2c0247); evaluation/tau2-bench of Weili-0234/ToolOrchestra at 8bb9e69: run.py, and
tau2/utils/llm_utils.py lines 434 (prompt), 441 (what gpt-5 reads), 576 (context) and 594 (temperature); arXiv
2511.21689, Table 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentic.toolorchestra.config import ToolOrchestraRecipe
from agentic.toolorchestra.environment import Environment
from agentic.toolorchestra.func_call import FuncCallRollout
from agentic.toolorchestra.rollout import ToolOrchestra
from agentic.toolorchestra.tau2.client import Workers
from agentic.toolorchestra.tau2.environment import Tau2Environment, Tau2EnvironmentFactory
from agentic.toolorchestra.tau2.users import HangUpUser
from benchmarks.harness.plan import EvalCell, EvaluationError
from benchmarks.harness.published import Protocol, Settings
from core.policy.base import Roles
from core.rollout.method import Method
from core.types import Sampling, Task, Trajectory

STANDARD, COMPAT = "standard", "toolorchestra-compat"
PROTOCOLS = (STANDARD, "experts", COMPAT)
NOTHING = "do-nothing"
ALL = "tau2"
"""Names all tasks of retail, airline and telecom together."""
WORLDS = f"{Tau2EnvironmentFactory.__module__}.{Tau2EnvironmentFactory.__name__}"
COMPAT_CONTEXT = 23000
"""Tokens of messages and tools to which ToolOrchestra's evaluation cuts the middle out of a conversation."""


def apply_protocol(
    protocol: str, recipe: ToolOrchestraRecipe, options: dict[str, Any], context: int
) -> ToolOrchestraRecipe:
    """Return the recipe under `protocol`.

    `options` are those of Tau2EnvironmentFactory; `context` limits messages and tools.
    """
    section = recipe.toolorchestra
    if protocol != STANDARD and not section.experts:
        raise EvaluationError(f"protocol {protocol} needs experts, and toolorchestra.experts of the preset is empty")
    compat = protocol == COMPAT
    total = min(context, COMPAT_CONTEXT) if compat else context
    changed = {
        "format": "hermes",
        "context": "rebuilt",
        "max_turns": options["max_steps"],
        "experts": () if protocol == STANDARD else section.experts,
        "tools": {},
        "judge": None,
        "budget": {**section.budget.model_dump(), "total": total, "result_tokens": total},
        "environment": {"path": WORLDS, "options": {**options, "compat": compat}},
    }
    dumped = recipe.model_dump()
    return type(recipe).model_validate({**dumped, "toolorchestra": {**dumped["toolorchestra"], **changed}})


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
        "tokens of the context": 23000,  # as published: not COMPAT_CONTEXT, which is ours and compared with it
        "what does not fit in it": "the middle of the conversation",
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
        "what does not fit in it": "the oldest messages but the first",
        **{f"model of {expert}": name_model(expert) for expert in section.experts},
        "malformed call": "shown to the agent, does not reach tau2",
        "several calls at once": "as many messages",
        "failed conversations": "not solved",
    }
    if cell.variant == COMPAT:
        settings |= {"policy that experts read": "tau2's", "added to what gpt-5 reads": "nothing"}
    return settings


class RecordedToolOrchestra(ToolOrchestra):
    """Keeps tau2's own record of the conversation in the trajectory's `log`."""

    def write_log(self, call: FuncCallRollout, environment: Environment) -> dict[str, Any]:
        assert isinstance(environment, Tau2Environment)
        return {**super().write_log(call, environment), "simulation": environment.simulation}


class DoNothing(Method):
    """Says once that it cannot help, to a user who then hangs up. Its score is what the tasks give away for free."""

    WORDS = "I am sorry, I cannot help you."

    def __init__(self, workers: Workers):
        self.workers = workers

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        environment = Tau2Environment(self.workers, user=HangUpUser(task))
        try:
            await environment.reset(task)
            if task.metadata["solo"]:
                await environment.call_tool("done", {})
            else:
                await environment.user_turn(self.WORDS)
            reward = await environment.evaluate()
        finally:
            await environment.close()
        log = {"simulation": environment.simulation}
        return Trajectory(task.task_id, (), reward=reward, metrics={"cost": 0.0}, log=log)
