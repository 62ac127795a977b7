"""Defines the section `agent` of a recipe: which agents there are, what rewards them, and what they may do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt, model_validator

from core.config import ConversationRecipe, Section
from core.environments import AnyEnvironment
from core.gateway import History
from core.options import FUNCTION

PRESETS = Path(__file__).parent / "presets"
SEEN = {"mcp": "the servers' files", "openenv": "with what an episode began"}
"""Says what the task holds that an agent's own reward gets, and that of all agents does not."""


class AgentEntry(Section):
    """Describes one agent: a function, a program or an environment, its reward and its limits."""

    run: Annotated[str | None, FUNCTION] = None
    """Names `async def run(task, endpoint) -> str` as package.module.function. `task.messages` is the whole prompt of
    the record; a rollout fails if a message before the question is in none of its requests."""
    command: tuple[str, ...] = ()
    """Names a program instead of a function, with its arguments. The program gets the question as one more argument, or
    in a file: `{question_file}` in an argument is the path of that file. A question of 128 KiB or more needs it. It
    finds the gateway in OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY. The last line that
    it prints is the answer. It runs in an empty folder; files that it is given here are found from where `tokentrue`
    was started."""
    environment: AnyEnvironment | None = None
    """Names an environment of another project instead: it plays its own tasks, which `tokentrue data environment`
    writes, and its reward counts where the recipe names none."""
    inherit: tuple[str, ...] = ("PATH", "LANG", "LC_ALL")
    """Names the environment variables that the program gets beside these."""
    reward: Annotated[str | None, FUNCTION] = None
    """Names `def reward(task, answer) -> float`, as the recipe's `reward` does for all agents."""
    max_turns: PositiveInt = 32
    """Limits the answers of the model in a rollout. An agent that asks on ends as truncated, with the answer "" if it
    does not catch the error and answer."""
    max_tool_calls: PositiveInt | None = None
    """Limits the tool calls of a rollout; one that asks on after more of them ends likewise."""
    max_tokens: PositiveInt = 1024
    """Limits the tokens of one answer of the model."""
    history: History = "sampled"
    """Says which thoughts of earlier answers a prompt keeps: all, or those that the chat template shows."""
    model_roles: Mapping[str, str] = {}
    """Maps patterns of model names to roles. Any other name asks the policy; `frozen:NAME` asks the role NAME. So
    `{claude-haiku-*: frozen:policy}` lets the policy write Claude Code's titles, untrained."""

    @model_validator(mode="after")
    def _is_one_program(self) -> AgentEntry:
        if sum((self.run is not None, bool(self.command), self.environment is not None)) != 1:
            raise ValueError("needs either `run`, a function's path, `command`, a program's words, or `environment`")
        return self


class AgentSection(Section):
    agents: Mapping[str, AgentEntry] = Field(min_length=1)
    """Names the agents. With several, `metadata.agent` of each record says which one takes the task."""
    template_options: Mapping[str, Any] = {}
    """Passes options to the chat template, such as {enable_thinking: false}."""


class AgentRecipe(ConversationRecipe):
    agent: AgentSection

    @model_validator(mode="after")
    def _every_agent_has_a_reward(self) -> AgentRecipe:
        for name, entry in self.agent.agents.items():
            environment = entry.environment
            seen = environment and SEEN.get(environment.kind)
            if environment and seen and (self.reward or not (entry.reward or environment.has_tasks)):
                fix = f"it alone sees {seen}; name it there, and no `reward` for all agents"
                raise ValueError(f"agent.agents.{name}.reward rewards an agent of the kind {environment.kind}: {fix}")
            if entry.reward is None and self.reward is None and environment is None:
                raise ValueError(f"agent.agents.{name}.reward is missing; set that, or `reward` for all agents")
        return self

    @model_validator(mode="after")
    def _context_is_known(self) -> AgentRecipe:
        if self.model.max_model_len is None:
            raise ValueError("model.max_model_len is missing: the gateway refuses longer prompts; set it, in tokens")
        return self
