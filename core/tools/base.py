"""What a tool is: a name and words for the planner, typed arguments, and one asynchronous call.

A tool is one file with one class, named by its import path in a preset. Its fields are the options that a preset may
set, its name and descriptions among them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, PositiveFloat

ToolStatus = Literal["ok", "error", "timeout", "bad_arguments"]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave. `text` is for the planner, also when it failed; `error` says in a word what went wrong."""

    status: ToolStatus
    text: str
    seconds: float = 0.0
    error: str | None = None
    parts: tuple[str, ...] = ()
    """What `text` consists of, such as passages without their numbers, where it has parts."""


class ToolError(Exception):
    """A tool that cannot be made; the message names it and the fix."""


class Interrupt(Exception):
    """Raised where no reply or result can be had and the call is not to blame: it is no result, and ends the step."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may use of the rollout that calls it."""

    ask: Callable[[str, str], Awaitable[str]]
    """(role, message) -> that role's reply to it, as a user's message; counted and recorded by the rollout.
    Raises Interrupt, which a tool lets pass."""


class Arguments(BaseModel):
    """Typed arguments of a tool; an unknown one is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Query(Arguments):
    query: str


class Tool(BaseModel, ABC):
    """One tool. `arguments` is the type of its call's arguments, `asks` the roles it needs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arguments: ClassVar[type[Arguments]] = Query

    name: str
    description: str
    limits: str = ""
    best_practice: str = ""
    timeout_s: PositiveFloat = 120.0
    """Longer calls are given up."""

    @property
    def asks(self) -> tuple[str, ...]:
        return ()

    @abstractmethod
    async def call(self, arguments: Any, context: ToolContext) -> ToolResult:
        """One call with an `arguments`. A failure is a result, with text from which a planner can learn."""

    async def close(self) -> None:
        """Release connections and processes."""
        return None

    def describe(self) -> str:
        """The tool in words, for a prompt: description, arguments, limits, best practice."""
        fields = self.arguments.model_json_schema()["properties"].items()
        arguments = ", ".join(f"{name} ({field.get('type', 'any')})" for name, field in fields)
        parts = {
            "Description": self.description,
            "Arguments": arguments,
            "Limits": self.limits,
            "Best practice": self.best_practice,
        }
        return "\n".join([self.name, *(f"  {title}: {text}" for title, text in parts.items() if text)])
