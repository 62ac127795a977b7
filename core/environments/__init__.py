"""Environments that others wrote, as agents of a recipe: they bring the tasks, the agent's program and the reward.

Each standard has a section of a recipe and a module that plays it, which is imported when a recipe names it. Import the
names below from here.
"""

from typing import TYPE_CHECKING

from core.options import open_later

if TYPE_CHECKING:
    from core.environments.sections import AgentEnvironment, AnyEnvironment
    from core.environments.tool_loop import AgentTool, run_tool_loop

__all__ = ["AgentEnvironment", "AgentTool", "AnyEnvironment", "run_tool_loop"]
__getattr__ = open_later(__name__)
