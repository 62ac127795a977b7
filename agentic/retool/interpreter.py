"""Runs the programs of a reply in the sandbox, each in a process of its own."""

from __future__ import annotations

from agentic.retool.config import ReToolSection
from core.config import RecipeError
from core.rollout.method import RolloutError
from core.text.tool_calls import CallError
from core.tools.base import Query, ToolContext, ToolError, ToolResult
from core.tools.python_coder import PythonCoder, SandboxFailed


class Interpreter:
    """Runs programs, and prints the value of one that is an expression.

    Raises:
        RecipeError: nothing here can isolate a program; the message says what is missing.
    """

    def __init__(self, config: ReToolSection):
        limits, backend, remember = config.sandbox, config.backend, config.remember
        try:
            self._coder = PythonCoder(source="query", sandbox=limits, backend=backend, remember=remember)
        except ToolError as error:
            raise RecipeError(f"retool.backend: {error}") from error
        self.isolation = self._coder.isolation

    async def run(self, program: str | CallError) -> ToolResult:
        """Run a program; that it failed, took too long or wrote too much is a result, whose text says so.

        So is a call that cannot be read.

        Raises:
            RolloutError: the isolation could not be set up, so nothing ran (kind `sandbox`).
        """
        if isinstance(program, CallError):
            return ToolResult("bad_arguments", f"error: {program.message}", error=program.kind)
        try:
            return await self._coder.call(Query(query=program), ToolContext(_ask_nobody))
        except SandboxFailed as error:
            raise RolloutError("sandbox", str(error)) from error

    async def close(self) -> None:
        await self._coder.close()


async def _ask_nobody(role: str, message: str) -> str:
    raise AssertionError(f"the interpreter asked {role}")  # with `source: query` it asks no role
