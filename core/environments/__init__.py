"""Environments that others wrote, as agents of a recipe: they bring the tasks, the agent's program and the reward.

Each standard has a module: its section of a recipe, and what plays it. A module imports its standard's package when a
recipe names it. Import the names below from here.
"""

from typing import Annotated

from pydantic import Field

from core.environments.base import AgentEnvironment, find_index
from core.environments.mcp import McpEntry, find_files
from core.environments.openenv import OpenEnvEntry
from core.environments.tool_loop import AgentTool, run_tool_loop
from core.environments.verifiers import VerifiersEntry

AnyEnvironment = Annotated[VerifiersEntry | OpenEnvEntry | McpEntry, Field(discriminator="kind")]
"""Describes the environment of an agent; `kind` says of which standard."""

__all__ = ["AgentEnvironment", "AgentTool", "AnyEnvironment", "find_files", "find_index", "run_tool_loop"]
