"""What a simulated world is to a `func_call` rollout: a user who speaks, tools that act, and a grade at the end.

One Environment is one conversation. The agent speaks (`user_turn`) or acts (`call_tool`); how it came to do so, by
itself or by an expert, is not the environment's to see. The implementation here is tau2-bench (tau2/).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from agentic.toolorchestra.config import EnvironmentSection
from core.config import RecipeError
from core.policy.openai_chat import ChatReply, Message
from core.rollout.method import RolloutError
from core.text.tool_calls import ToolSchema
from core.types import Task


class EnvironmentFault(RolloutError):
    """The environment itself failed; the agent is not to blame, and the rollout is counted as failed.

    Kinds: `env_task` (not a task of this environment), `env_user` (the simulated user gave no reply), `env_tool` (a
    tool broke, which is not a call that it refused), `env_grade`, `env_protocol` (a call before reset or after the
    end), `env_process` (what plays the world has ended).
    """


@dataclass(frozen=True, slots=True)
class Start:
    """What the agent is given: its rules, its tools, and what has been said so far, mostly the user's first message."""

    policy: str
    tools: Sequence[ToolSchema]
    message: str
    complete: bool = False
    """The rules say how to speak and to call, too; nothing may be added to them."""
    plain: Start | None = None
    """What experts are given, where rules and tools were rewritten for the orchestrator."""


@dataclass(frozen=True, slots=True)
class Said:
    """The user's answer; `done` when it ended the conversation."""

    text: str
    done: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool gave back. `error`: the call was refused, and `text` says why."""

    text: str
    error: bool = False
    done: bool = False
    """The call ended the conversation, as a transfer to a human does."""


class Environment(Protocol):
    """Every method may raise EnvironmentFault. Blocking worlds run in a thread or process of their own."""

    async def reset(self, task: Task) -> Start: ...

    async def user_turn(self, message: str) -> Said:
        """Say `message` to the user."""
        ...

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> Result:
        """One call by the agent. An unknown tool or a wrong argument is a Result with `error`."""
        ...

    async def evaluate(self) -> float:
        """The score of the conversation so far, 0..1; of one that was broken off too."""
        ...

    async def close(self) -> None: ...


Ask = Callable[[str, Sequence[Message], Sequence[Mapping[str, Any]]], Awaitable[ChatReply]]
"""(a name under toolorchestra.models, messages, tools in OpenAI's form) -> its reply; raises PolicyError. For simulated
users and judges, whose calls are not the orchestrator's and cost it nothing."""


class Worlds(Protocol):
    """What the conversations of a run share, such as processes. Made once, from the recipe's `environment`."""

    def open(self, task: Task, ask: Ask) -> Environment:
        """A world for one conversation about `task`."""
        ...

    async def close(self) -> None: ...


def make_worlds(section: EnvironmentSection | None) -> Worlds | None:
    """What the recipe's `toolorchestra.environment` names. Raises RecipeError if it cannot be made."""
    if section is None:
        return None
    module, _, name = section.path.rpartition(".")
    try:
        made: Worlds = getattr(import_module(module), name)(**section.options)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise RecipeError(f"toolorchestra.environment {section.path!r}: {error}; see `path` and `options`") from error
    return made
