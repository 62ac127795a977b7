"""The three named protocols, and the agent that does nothing. One table row never mixes two of them.

| protocol | prompt, tools | experts |
|---|---|---|
| standard | tau2's own, untouched | none |
| experts | the same, and `call_expert` | as the recipe maps them |
| toolorchestra-compat | rewritten as in ToolOrchestra's evaluation (agentic/toolorchestra/tau2/compat.py) | the same |

The last two are what tau2's leaderboard calls custom. A conversation may take 200 steps and 10 tool errors, as there.
"""

from __future__ import annotations

from typing import Any

from agentic.toolorchestra.config import ToolOrchestraRecipe
from agentic.toolorchestra.environment import Environment
from agentic.toolorchestra.func_call import FuncCallRollout
from agentic.toolorchestra.rollout import ToolOrchestra
from agentic.toolorchestra.tau2.client import Workers
from agentic.toolorchestra.tau2.environment import Tau2Environment, Tau2EnvironmentFactory
from agentic.toolorchestra.tau2.users import HangUpUser
from benchmarks.harness.plan import EvaluationError
from core.policy.base import Roles
from core.rollout.method import Method
from core.types import Sampling, Task, Trajectory

PROTOCOLS = ("standard", "experts", "toolorchestra-compat")
NOTHING = "do-nothing"
WORLDS = f"{Tau2EnvironmentFactory.__module__}.{Tau2EnvironmentFactory.__name__}"
COMPAT_CONTEXT = 23000
"""Tokens of messages and tools to which ToolOrchestra's evaluation cuts the middle of a conversation."""


def apply_protocol(
    protocol: str, recipe: ToolOrchestraRecipe, options: dict[str, Any], context: int
) -> ToolOrchestraRecipe:
    """Return the recipe under `protocol`.

    `options` are those of Tau2EnvironmentFactory; `context` limits messages and tools.
    """
    section = recipe.toolorchestra
    if protocol != "standard" and not section.experts:
        raise EvaluationError(f"protocol {protocol} needs experts, and toolorchestra.experts of the preset is empty")
    compat = protocol == "toolorchestra-compat"
    total = min(context, COMPAT_CONTEXT) if compat else context
    changed = {
        "format": "hermes",
        "context": "rebuilt",
        "max_turns": options["max_steps"],
        "experts": () if protocol == "standard" else section.experts,
        "tools": {},
        "judge": None,
        "budget": {**section.budget.model_dump(), "total": total, "result_tokens": total},
        "environment": {"path": WORLDS, "options": {**options, "compat": compat}},
    }
    dumped = recipe.model_dump()
    return type(recipe).model_validate({**dumped, "toolorchestra": {**dumped["toolorchestra"], **changed}})


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
