"""Baselines of the `tiny` preset: planners that cannot choose a tool.

| variant | next steps | final answer |
|---|---|---|
| always-python-coder | the right sub-goals, always to python_coder | the policy's |
| always-base-generator | the right sub-goals, always to base_generator | the policy's |
| random-tool | the right sub-goals, each to a tool drawn at random | the policy's |
| random-step | one of the steps that can be taken (demonstrations.py), drawn at random | the policy's |
| no-tool | none | the policy's, from the question alone |

The sub-goals come from an oracle (questions.py). So each variant bounds every planner that chooses tools in its way,
except for mistakes in the final answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from agentic.agentflow.config import AgentFlowRecipe, make_toolbox
from agentic.agentflow.memory import Memory
from agentic.agentflow.role_client import RoleClient, Slots
from agentic.agentflow.rollout import AgentFlow
from agentic.agentflow.tiny.demonstrations import draw_step
from agentic.agentflow.tiny.questions import CODER, GENERATOR, ToyQuestion
from agentic.agentflow.tiny.scripted_roles import is_result
from core.policy.base import Roles
from core.rollout.method import Method
from core.text.tokenizer import Tokenizer
from core.types import Sampling, Task, Trajectory

Results = Mapping[str, str]
Choose = Callable[[Random, ToyQuestion, Results], tuple[str, str]]


class ScriptedPlanner(AgentFlow):
    """A planner whose next steps `choose(random numbers, question, results)` says, as a tool and a sub-goal."""

    def __init__(self, choose: Choose, recipe: AgentFlowRecipe, tokenizer: Tokenizer):
        super().__init__(recipe.agentflow, make_toolbox(recipe.agentflow), tokenizer)
        self.choose = choose

    async def ask_with_memory(self, client: RoleClient, role: str, known: Slots, memory: Memory) -> str:
        if role != "planner.next_step":
            return await super().ask_with_memory(client, role, known, memory)
        results = {step.sub_goal: step.result for step in memory.steps if is_result(step.result)}
        rng = Random(f"{client.seed}-{len(memory.steps)}")
        return " {} : {}".format(*self.choose(rng, ToyQuestion.read(str(known["question"])), results))


def draw_tool(tools: Sequence[str], rng: Random, question: ToyQuestion, results: Results) -> tuple[str, str]:
    """Return the right sub-goal with one of `tools`, drawn at random."""
    step = question.next_step(results)
    assert step is not None, "the verifier stops once nothing is missing"
    return rng.choice(tools), step[1]


class NoToolPlanner(AgentFlow):
    """A planner that takes no step and answers at once."""

    def __init__(self, recipe: AgentFlowRecipe, tokenizer: Tokenizer):
        super().__init__(recipe.agentflow, make_toolbox(recipe.agentflow), tokenizer)

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        client = self.new_client(roles, sampling)
        known = {"question": task.question, "analysis": "", "memory": ""}
        answer = await client.ask("planner.final", known, budgeted=False)
        return await self.make_trajectory(task, client, Memory(), answer, "no_tool", 0)


BASELINES: Mapping[str, Callable[[AgentFlowRecipe, Any], Method]] = {
    "always-python-coder": partial(ScriptedPlanner, partial(draw_tool, (CODER,))),
    "always-base-generator": partial(ScriptedPlanner, partial(draw_tool, (GENERATOR,))),
    "random-tool": partial(ScriptedPlanner, partial(draw_tool, (CODER, GENERATOR))),
    "random-step": partial(ScriptedPlanner, draw_step),
    "no-tool": NoToolPlanner,
}
