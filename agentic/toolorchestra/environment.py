"""Defines the environment of a `func_call` rollout: a user who writes, tools that act, and a grade at the end.

One Environment is one conversation. The agent writes (`user_turn`) or acts (`call_tool`). The environment does not see
whether the agent or an expert chose the turn. The implementation here is tau2-bench (tau2/).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentic.toolorchestra.config import EnvironmentSection
from core.config import RecipeError
from core.options import import_by_path
from core.policy.openai_chat import ChatReply, Message
from core.rollout.method import RolloutError
from core.text.tool_calls import ToolSchema
from core.types import Task


class EnvironmentFault(RolloutError):
    """The environment itself failed. The agent is not to blame, and the rollout counts as failed.

    Kinds: `env_task` (not a task of this environment), `env_user` (the simulated user gave no reply), `env_grade` (its
    judge gave none), `env_protocol` (a call before reset or after the end), `env_process` (the environment's process
    has ended). A refused call is no fault.
    """


@dataclass(frozen=True, slots=True)
class Start:
    """Holds what the agent is given: its rules, its tools, and the conversation so far, mostly one message of the
    user."""

    policy: str
    tools: Sequence[ToolSchema]
    message: str
    complete: bool = False
    """Says that the rules also describe the format of messages and calls, so nothing may be added to them."""
    plain: Start | None = None
    """Holds what experts are given, if rules and tools were rewritten for the orchestrator."""


@dataclass(frozen=True, slots=True)
class UserReply:
    """Holds the user's answer; `done` says that it ended the conversation."""

    text: str
    done: bool = False


@dataclass(frozen=True, slots=True)
class CallResult:
    """Holds what a tool returned. `error` says that the call was refused; `text` then says why."""

    text: str
    error: bool = False
    done: bool = False
    """Says that the call ended the conversation, as a transfer to a human does."""


class Environment(Protocol):
    """Plays one conversation. Every method may raise EnvironmentFault. A blocking implementation needs a thread or
    process of its own."""

    async def reset(self, task: Task) -> Start: ...

    async def user_turn(self, message: str) -> UserReply:
        """Send `message` to the user."""
        ...

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        """Make one call of the agent. An unknown tool or a wrong argument gives a CallResult with `error`."""
        ...

    async def evaluate(self) -> float:
        """Grade the conversation so far, even if it did not end; 1 is solved, and less is not."""
        ...

    async def close(self) -> None: ...


Ask = Callable[[str, Sequence[Message], Sequence[Mapping[str, Any]]], Awaitable[ChatReply]]
"""(a name under toolorchestra.models, messages, tools in OpenAI's form) -> its reply; raises PolicyError. Users and
judges that are simulated ask models so; these calls are not the orchestrator's and cost it nothing."""


class EnvironmentFactory(Protocol):
    """Keeps what the conversations of a run share, such as processes. The recipe's `environment` makes one per run."""

    def open(self, task: Task, ask: Ask) -> Environment:
        """Make an environment for one conversation about `task`."""
        ...

    async def close(self) -> None: ...


def make_environment_factory(section: EnvironmentSection | None) -> EnvironmentFactory | None:
    """Make what the recipe's `toolorchestra.environment` names. Raises RecipeError if it cannot be made."""
    if section is None:
        return None
    try:
        factory: EnvironmentFactory = import_by_path(section.path)(**section.options)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise RecipeError(f"toolorchestra.environment {section.path!r}: {error}; see `path` and `options`") from error
    return factory
