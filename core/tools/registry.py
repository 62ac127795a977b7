"""Makes the tools of a rollout from import paths, finds them by name and calls them within their limits."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from core.options import import_by_path
from core.tools.base import Interrupt, Tool, ToolContext, ToolError, ToolResult


def make_tool(path: str, options: Mapping[str, Any]) -> Tool:
    """Make a tool of class `path` (`package.module.Class`) with `options` as its fields.

    Raises:
        ToolError: there is no such class, it is not a Tool, or it does not have one of the options.
    """
    try:
        kind = import_by_path(path)
    except ValueError as error:
        raise ToolError(f"tool {path!r}: {error}; write package.module.Class") from error
    if not (isinstance(kind, type) and issubclass(kind, Tool)):
        raise ToolError(f"tool {path!r} is not a core.tools.base.Tool; make it a subclass")
    try:
        return kind(**options)
    except ValidationError as error:
        raise ToolError(
            f"tool {path!r}: {_list_problems(error)}. Its options: {', '.join(kind.model_fields)}"
        ) from error


class Toolbox:
    """Holds tools by name; case, spaces, dashes and underscores make no difference."""

    def __init__(self, tools: Sequence[Tool]):
        self._tools = {_normalize(tool.name): tool for tool in tools}
        if len(self._tools) < len(tools):
            raise ToolError(f"two tools have the same name: {', '.join(tool.name for tool in tools)}")

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    @property
    def names(self) -> list[str]:
        return [tool.name for tool in self]

    @property
    def isolation(self) -> str | None:
        """Return the first `isolation` of a tool: all take the same, unless their options name others."""
        return next((tool.isolation for tool in self if tool.isolation), None)

    def find(self, name: str) -> Tool | None:
        return self._tools.get(_normalize(name))

    async def call(self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Call `tool` within its time limit. Whatever fails inside it becomes a result.

        Raises:
            Interrupt: the tool could not do its work for a reason that is neither its own nor the call's.
            ToolError: the tool returned something else than a ToolResult.
        """
        began = time.monotonic()
        result = await self._call(tool, arguments, context)
        if not isinstance(result, ToolResult):
            raise ToolError(f"tool {tool.name}: call returned {result!r:.60}; return a core.tools.base.ToolResult")
        return replace(result, seconds=time.monotonic() - began)

    async def _call(self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        try:
            typed = tool.arguments.model_validate(arguments)
        except ValidationError as error:
            problems = _list_problems(error)
            return ToolResult("bad_arguments", f"The arguments do not fit {tool.name}: {problems}", error=problems)
        limit = asyncio.timeout(tool.timeout_s)
        try:
            async with limit:
                return await tool.call(typed, context)
        except Interrupt:
            raise
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                return ToolResult("timeout", f"{tool.name} gave no result within {tool.timeout_s:g} seconds.")
            return ToolResult("error", f"{tool.name} failed: {error}", error=repr(error))

    async def close(self) -> None:
        for tool in self:
            await tool.close()


def _normalize(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


def _list_problems(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
