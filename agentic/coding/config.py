"""Defines the section `coding` of a recipe: the agent's tools and limits, and the sandbox of its repository."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from core.config import ConversationRecipe, Section
from core.sandbox.workspace import WorkspaceLimits

PRESETS = Path(__file__).parent / "presets"

ToolName = Literal["bash", "read", "edit", "delegate"]


class CommandSection(Section):
    """Describes a program that is the agent, in place of our own loop. It asks the policy through the gateway."""

    arguments: tuple[str, ...] = Field(min_length=1)
    """Names the program and its arguments. In each, {statement} stands for the problem, {question_file} for the path of
    a file that holds it, and {openai_url}, {anthropic_url} and {key} for the gateway. All arguments together may have
    128 KiB; a longer problem needs the file."""
    environment: Mapping[str, str] = {}
    """Adds variables, filled in as the arguments are, to OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL,
    ANTHROPIC_API_KEY and MODEL."""
    paths: tuple[str, ...] = ()
    """Names files and folders of the host that the program needs, such as node_modules or a virtual environment. The
    workspace shows them read-only, at the same paths. /proc shows the workspace's own processes; Bun needs it."""
    workspace: WorkspaceLimits = WorkspaceLimits(memory_mb=1 << 18, processes=256, disk_mb=256)
    """Limits the program and what it runs. JavaScript reserves more than 128 GB of addresses, which memory_mb limits.
    The tests that decide the reward have the limits of coding.workspace."""
    output_bytes: PositiveInt = 1 << 22
    """Limits what the program may print."""
    model_roles: Mapping[str, str] = {}
    """Maps patterns of model names to roles, as in agentic/agent: `{claude-haiku-*: frozen:policy}` lets the policy
    write Claude Code's titles, untrained."""


class CodingSection(Section):
    command: CommandSection | None = None
    """Makes a program the agent. Then tools, show_source, subagent_turns, max_summary_tokens, command_timeout_s and
    output_chars, which belong to our own loop, say nothing."""
    format: Literal["calls", "fences", "rewrite"] = "calls"
    """Chooses how our own loop reads what the agent does: as calls of the model's chat template; `fences`, the last
    ```bash block of a reply, whose output follows as an ```output block; or `rewrite`, one reply whose last ```python
    block replaces the repository's only source file. The last two take no other tools than `bash`."""
    tools: tuple[ToolName, ...] = ("bash",)
    """Names the agent's tools. `delegate` hands a question to a sub-agent, which has the other tools but `edit`."""
    backend: Literal["auto", "bubblewrap", "landlock", "docker"] = "auto"
    """Says where repositories live. `docker` needs `metadata.image` in every record; the others need
    `metadata.repository`."""
    workspace: WorkspaceLimits = WorkspaceLimits()
    show_source: bool = False
    """Puts the Python files of the repository, but not its tests, into the first message, with numbered lines."""
    max_turns: PositiveInt = 40
    subagent_turns: PositiveInt = 10
    max_tokens: PositiveInt = 2048
    """Limits the tokens of a turn."""
    context_tokens: PositiveInt
    """Limits prompt plus completion of every call."""
    max_summary_tokens: NonNegativeInt = 0
    """Limits a summary. A conversation that would outgrow the context is summed up; with 0 it ends instead."""
    time_limit_s: PositiveFloat = 1800.0
    """Limits the agent's wall clock, the policy's time included. What it has changed until then is graded."""
    command_timeout_s: PositiveFloat = 120.0
    test_timeout_s: PositiveFloat = 600.0
    """Limits the tests that decide the reward."""
    output_chars: PositiveInt = 8000
    """Limits what the agent is shown of an output: half from its head, half from its tail."""
    remember: NonNegativeInt = 0
    """Says how many verdicts are kept and returned again for the same task and diff. It needs tests without chance."""

    @model_validator(mode="after")
    def _fences_hold_commands(self) -> CodingSection:
        if self.format != "calls" and self.tools != ("bash",):
            raise ValueError(f"format: {self.format} has no calls of other tools; set coding.tools=[bash]")
        return self


class CodingRecipe(ConversationRecipe):
    coding: CodingSection

    @model_validator(mode="after")
    def _command_has_a_port(self) -> CodingRecipe:
        if self.coding.command is not None and self.coding.backend == "docker":
            raise ValueError(
                "coding.command needs coding.backend auto, bubblewrap or landlock: containers do not reach the gateway"
            )
        return self
