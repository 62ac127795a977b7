"""Runs the programs of a reply in the sandbox, each in a process of its own."""

from __future__ import annotations

import re

from agentic.retool.config import ReToolSection
from agentic.retool.prompts import CODE, CODE_END
from core.config import RecipeError
from core.rollout.method import RolloutError
from core.tools.base import Query, ToolContext, ToolError, ToolResult
from core.tools.programs import can_parse, extract_program
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

    async def run(self, program: str) -> ToolResult:
        """Run a program; that it failed, took too long or wrote too much is a result, whose text says so.

        Raises:
            RolloutError: the isolation could not be set up, so nothing ran (kind `sandbox`).
        """
        try:
            return await self._coder.call(Query(query=program), ToolContext(_ask_nobody))
        except SandboxFailed as error:
            raise RolloutError("sandbox", str(error)) from error

    async def close(self) -> None:
        await self._coder.close()


def find_program(reply: str) -> str | None:
    """Return the program that a reply ends with, without a fence; "" if it was not opened, None if there is none.

    The last tag opens it, or an earlier one behind which all is Python with the later tags in its strings.
    """
    before, end, _ = reply.partition(CODE_END)
    if not end:
        return None
    opened = [match.end() for match in re.finditer(re.escape(CODE), before)]
    programs = [extract_program(before[place:]) for place in opened]
    # Elsewhere than in a string, an open bracket in place of a tag is no Python.
    whole = (program for program in programs[:-1] if can_parse(program.replace(CODE, "(")))
    return next(whole, programs[-1]) if programs else ""


async def _ask_nobody(role: str, message: str) -> str:
    raise AssertionError(f"the interpreter asked {role}")  # with `source: query` it asks no role
