"""What the `tiny` preset's planner is compared with: planners that cannot choose a tool.

| variant | next steps | final answer |
|---|---|---|
| always-python-coder | the right sub-goals, always to python_coder | the policy's |
| always-base-generator | the right sub-goals, always to base_generator | the policy's |
| random-tool | the right sub-goals, each to a tool drawn at random | the policy's |
| no-tool | none | the policy's, from the question alone |

The sub-goals are those of an oracle (questions.py), so each variant bounds every planner that chooses tools in its way, up
to the final answer's own mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

from agentic.agentflow.calls import Calls, Slots
from agentic.agentflow.config import AgentFlowRecipe, make_toolbox
from agentic.agentflow.memory import Memory
from agentic.agentflow.rollout import AgentFlow
from agentic.agentflow.tiny.questions import CODER, GENERATOR, Question
from agentic.agentflow.tiny.scripted_roles import is_result
from core.policy.base import Roles
from core.rollout.method import Method
from core.types import Sampling, Task, Trajectory


class GivenTools(AgentFlow):
    """The right sub-goals, each to one of `tools`."""

    def __init__(self, tools: tuple[str, ...], recipe: AgentFlowRecipe, tokenizer: Any):
        super().__init__(recipe.agentflow, make_toolbox(recipe.agentflow), tokenizer)
        self.tools = tools

    async def said(self, calls: Calls, role: str, known: Slots, memory: Memory) -> str:
        if role != "planner.next_step":
            return await super().said(calls, role, known, memory)
        question = str(known["question"])
        results = {step.sub_goal: step.result for step in memory.steps if is_result(step.result)}
        step = Question.read(question).next_step(results)
        assert step is not None, "the verifier stops once nothing is missing"
        tool = Random(f"{calls.seed}-{len(memory.steps)}").choice(self.tools)
        return f" {tool} : {step[1]}"


class NoTool(AgentFlow):
    """The final answer at once."""

    def __init__(self, recipe: AgentFlowRecipe, tokenizer: Any):
        super().__init__(recipe.agentflow, make_toolbox(recipe.agentflow), tokenizer)

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        calls = self.calls(roles, sampling)
        known = {"question": task.question, "analysis": "", "memory": ""}
        answer = await calls.ask("planner.final", known, budgeted=False)
        return await self.scored(task, roles, calls, Memory(), answer, "no_tool", 0)


BASELINES: Mapping[str, Callable[[AgentFlowRecipe, Any], Method]] = {
    "always-python-coder": partial(GivenTools, (CODER,)),
    "always-base-generator": partial(GivenTools, (GENERATOR,)),
    "random-tool": partial(GivenTools, (CODER, GENERATOR)),
    "no-tool": NoTool,
}
