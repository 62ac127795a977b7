"""The agent of the preset `seed`: it solves mathematics with a Python tool, as slime's example with Strands does."""

from __future__ import annotations

from functools import cache

from core.environments import AgentTool, run_tool_loop
from core.gateway import Endpoint
from core.sandbox import Sandbox, SandboxLimits
from core.text.programs import extract_program
from core.text.tool_calls import make_schema
from core.types import Task

SYSTEM = (
    "You solve mathematical problems. Work step by step, and let the tool python do every computation. Write your "
    "final answer as \\boxed{answer}."
)
TIMEOUT_S = 60.0


@cache
def open_sandbox() -> Sandbox:
    """Open the sandbox of this process. Raises SandboxUnavailable where there is no isolation."""
    return Sandbox(SandboxLimits(timeout_s=TIMEOUT_S))


async def run_python(code: str) -> str:
    """Run a program in the sandbox and return what it printed, or how it failed."""
    done = await open_sandbox().run(extract_program(code))
    if done.status == "ok":
        return done.stdout.strip() or "The program printed nothing."
    return f"The program ended with {done.status}.\n{done.stderr.strip()}\n{done.stdout.strip()}".strip()


PYTHON = AgentTool(
    make_schema("python", "Runs a Python program and returns what it prints.", {"code": "string"}), run_python
)


async def run(task: Task, endpoint: Endpoint) -> str:
    """Solve the task's problem."""
    return await run_tool_loop(endpoint, task.messages, [PYTHON], SYSTEM)
