"""Agents that others wrote, trained as they are: a function or a program that talks to OpenAI's or Anthropic's API.

Each rollout is a session of the gateway (core/gateway), which keeps the exact tokens of every answer. The recipe names
the agents (config.py), and a record's `metadata.agent` says which one takes the task. An agent takes the base URL and
the key from its `Endpoint`; nothing else in it needs to change.

Run:  bash agentic/agent/run.sh                        # tiny: two CPU cores, minutes
      bash agentic/agent/run.sh --preset seed --backend slime --dry-run
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from agentic.agent.config import PRESETS, AgentEntry, AgentRecipe
from core.config import RecipeError, import_function
from core.gateway import AgentMethod, Command, RunAgent, SessionSettings, find_program
from core.policy.base import Roles
from core.rollout.method import Method, MethodSpec, RolloutError, find_hook
from core.text.tokenizer import Tokenizer
from core.types import Sampling, Task, Trajectory

OURS = "agentic.agent.rewards."
"""Begins the names of rewards that compare an answer with the record's."""


class AgentTeam(Method):
    """Gives each task to the agent that it names."""

    def __init__(self, agents: Mapping[str, AgentMethod]):
        self.agents = agents
        self.needs = tuple(sorted({role for agent in agents.values() for role in agent.needs}))

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        """Run the task's agent to its answer, and reward that."""
        if fault := find_fault(self.agents, task):
            raise RolloutError("bad_task", f"task {task.task_id}: {' '.join(fault[:2])}; {fault[2]}")
        name = task.metadata.get("agent") or next(iter(self.agents))
        return await self.agents[name].rollout(task, roles, sampling)

    async def close(self) -> None:
        for agent in self.agents.values():
            await agent.close()


def find_fault(agents: Mapping[str, object], task: Task) -> tuple[str, str, str] | None:
    """Say what is wrong with `metadata.agent` of a task, as (field, problem, fix); None if it names one of `agents`."""
    name, known = task.metadata.get("agent"), list(agents)
    if name in known or (name is None and len(known) == 1):
        return None
    problem = "is missing, and the recipe has several agents" if name is None else f"is {name!r}, which is no agent"
    return "metadata.agent", problem, f"name one of {', '.join(known)}, or add the agent to the recipe's agent.agents"


def check_task(recipe: AgentRecipe, task: Task) -> tuple[str, str, str] | None:
    agents = recipe.agent.agents
    if fault := find_fault(agents, task):
        return fault
    name = task.metadata.get("agent") or next(iter(agents))
    entry, fix = agents[name], "write all into the question, or leave it out"
    if task.earlier_messages and entry.command:
        return "messages", f"the program of agent {name} gets the question alone", fix
    if task.context.strip() and (entry.run is None or entry.run.startswith("agentic.agent.")):
        return "context", f"agent {name} does not see it", fix
    if not task.answers and (reward := recipe.reward or entry.reward or "").startswith(OURS):
        return "answers", f"is empty, and {reward} would reward nothing", "give answers, or name another reward"
    return None if entry.environment is None else entry.environment.find_fault(task)


def build(recipe: AgentRecipe, tokenizer: Tokenizer) -> AgentTeam:
    """Make the recipe's agents.

    Raises:
        RecipeError: a function cannot be imported, `run` is not asynchronous, or an environment cannot be opened.
    """
    assert recipe.model.max_model_len is not None, "the recipe has seen to it"
    agents = {}
    for name, entry in recipe.agent.agents.items():
        key = f"agent.agents.{name}"
        reward = None if recipe.reward is not None else entry.reward
        settings = SessionSettings(
            max_context=recipe.model.max_model_len,
            max_turns=entry.max_turns,
            max_tool_calls=entry.max_tool_calls,
            history=entry.history,
            model_roles=entry.model_roles,
        )
        agents[name] = AgentMethod(
            find_agent(key, entry),
            None if reward is None else import_function(f"{key}.reward", reward),
            tokenizer,
            settings,
            max_new_tokens=entry.max_tokens,
            template_options=recipe.agent.template_options,
        )
    return AgentTeam(agents)


def find_agent(key: str, entry: AgentEntry) -> RunAgent:
    """Return the function or the program of an agent. Raises RecipeError as `build`."""
    if entry.environment is not None:
        return entry.environment.open(f"{key}.environment", entry.max_turns)
    if entry.run is None:
        return Command(tuple(find_program(entry.command)), entry.inherit)
    run = import_function(f"{key}.run", entry.run)
    if not inspect.iscoroutinefunction(run):
        raise RecipeError(f"{key}.run: {entry.run} must be `async def`: all rollouts share one thread with the engine")
    return run


def needs_short_answers(recipe: AgentRecipe) -> bool:
    """Return whether an agent has a reward of ours, which compares an answer with the label."""
    return any((entry.reward or "").startswith(OURS) for entry in recipe.agent.agents.values())


SPEC = MethodSpec(
    "agent", AgentRecipe, PRESETS, build, keeps_messages=True, short_answers=needs_short_answers, check_task=check_task
)
__getattr__ = find_hook  # by these names a backend imports its hooks from here
