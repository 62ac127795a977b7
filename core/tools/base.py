"""Defines a tool: a name and a description for the planner, typed arguments, and one asynchronous call.

A tool is a class; a preset names it by its import path, and `make_tool` makes it. Its fields are the options that a
preset may set. Its name and descriptions are fields too. A Toolbox finds tools by name, and calls them within their
limits.
"""

from __future__ import annotations

import asyncio
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, PositiveFloat, ValidationError

from core.options import Section, import_by_path

ToolStatus = Literal["ok", "error", "timeout", "bad_arguments"]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Holds the outcome of a call. The planner reads `text`, also after a failure; `error` names what went wrong."""

    status: ToolStatus
    text: str
    seconds: float = 0.0
    error: str | None = None
    parts: tuple[str, ...] = ()
    """Lists the parts of `text` if it has any, such as passages without their numbers."""


class ToolError(Exception):
    """Reports a tool that cannot be made; the message names the tool and the fix."""


class Interrupt(Exception):
    """Ends the step: no reply or result can be had, and the call is not to blame."""


async def ask_nobody(role: str, message: str) -> str:
    raise AssertionError(f"the tools of this method ask no role, but {role} was asked")


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Holds what a tool may use of the rollout that calls it."""

    ask: Callable[[str, str], Awaitable[str]] = ask_nobody
    """Sends a user's message to a role and returns the reply: (role, message) -> text.
    The rollout counts and records it. It may raise Interrupt, which a tool must not catch."""


class Arguments(BaseModel):
    """Holds the typed arguments of a tool; an unknown argument is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Query(Arguments):
    query: str


class Tool(Section, ABC):
    """Describes a tool and runs it. `arguments` is the type of its arguments."""

    arguments: ClassVar[type[Arguments]] = Query
    needs_service: ClassVar[bool] = False
    """Says that an error or a timeout is a service's fault, and not the call's."""

    name: str
    description: str
    limits: str = ""
    best_practice: str = ""
    timeout_s: PositiveFloat = 120.0
    """Limits the seconds of a call; a longer one is cancelled."""

    @property
    def required_roles(self) -> tuple[str, ...]:
        """Return the roles that the tool asks."""
        return ()

    @property
    def isolation(self) -> str | None:
        """Name what isolates the programs that the tool runs; None if it runs none."""
        return None

    @abstractmethod
    async def call(self, arguments: Any, context: ToolContext) -> ToolResult:
        """Run the tool. A failure is a result too; its text helps the planner to do better."""

    async def close(self) -> None:
        """Release connections and processes."""

    def describe(self) -> str:
        """Return the tool's description, arguments, limits and best practice as text for a prompt."""
        fields = self.arguments.model_json_schema()["properties"].items()
        arguments = ", ".join(f"{name} ({_describe_argument(field)})" for name, field in fields)
        parts = {
            "Description": self.description,
            "Arguments": arguments,
            "Limits": self.limits,
            "Best practice": self.best_practice,
        }
        return "\n".join([self.name, *(f"  {title}: {text}" for title, text in parts.items() if text)])


def _describe_argument(field: Mapping[str, Any]) -> str:
    """Return the types of an argument, and its description."""
    types = " or ".join(each.get("type", "any") for each in field.get("anyOf", (field,)))
    return ": ".join(filter(None, (types, field.get("description"))))


def make_tool(path: str, options: Mapping[str, Any], **given: Any) -> Tool:
    """Make a tool of class `path` (`package.module.Class`), with `options` and what the method has `given` as fields.

    Raises:
        ToolError: there is no such class, it is not a Tool, it lacks one of the options, or the method gives it.
    """
    if twice := given.keys() & options.keys():
        raise ToolError(f"tool {path!r}: the method itself sets {', '.join(twice)}; remove it from the tool's options")
    try:
        kind = import_by_path(path)
    except ValueError as error:
        raise ToolError(f"tool {path!r}: {error}; write package.module.Class") from error
    if not (isinstance(kind, type) and issubclass(kind, Tool)):
        raise ToolError(f"tool {path!r} is not a core.tools.base.Tool; make it a subclass")
    try:
        return kind(**options, **given)
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
