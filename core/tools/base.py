"""Defines a tool: a name and a description for the planner, typed arguments, and one asynchronous call.

A tool is one file with one class; a preset names it by its import path. Its fields are the options that a preset may
set. Its name and descriptions are fields too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, PositiveFloat

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


class Tool(BaseModel, ABC):
    """Describes a tool and runs it. `arguments` is the type of its arguments."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
