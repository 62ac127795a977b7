"""Defines an agent's section `environment`, one class for each standard, and what plays an environment: an agent
(core/gateway/agent.py) that brings its own tasks and reward.

A recipe is read without what plays them: the module of a standard is imported when its environment is opened.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from core.options import RecipeError, Section
from core.rollout.method import RolloutError
from core.types import Task

if TYPE_CHECKING:
    from core.gateway import Endpoint, Outcome

REWRITE = "write the tasks again with `tokentrue data environment --preset FILE --out FILE --tasks 256`"
INDEX = "{index}"
"""Stands in `reset` for the index of the task."""


class AgentEnvironment(ABC):
    """Plays one environment. `metadata.index` of a task says which of the environment's tasks it is."""

    @abstractmethod
    async def __call__(self, task: Task, endpoint: Endpoint) -> Outcome:
        """Play a task with the policy at `endpoint`; return the answer and the environment's reward.

        Raises:
            RolloutError: `environment` if the environment fails, `bad_task` if it has another task of this index.
        """

    async def read_task(self, index: int) -> tuple[str, str | None]:
        """Return the prompt of a task, and its key: what other tasks of this index do not have, as `metadata.key`.

        Raises:
            RolloutError: `bad_task` if there is no such task.
        """
        raise RolloutError("bad_task", "the environment has no tasks; write records of your own")

    async def close(self) -> None:
        """End what was started."""
        return None


class EnvironmentEntry(Section):
    """Names an environment in a recipe."""

    has_tasks: ClassVar[bool] = True
    """Says whether it brings tasks and a reward. Else both are the recipe's."""

    def find_fault(self, task: Task) -> tuple[str, str, str] | None:
        """Return what is wrong with a record for it, as (field, problem, fix), or None."""
        index = task.metadata.get("index")
        if isinstance(index, int) and not isinstance(index, bool) and index >= 0:
            return None
        return "metadata.index", f"is {index!r}, and names no task of the environment", REWRITE

    def check(self, task: Task) -> None:
        """Raise RolloutError (`bad_task`) for a task whose record has a fault."""
        if fault := self.find_fault(task):
            raise bad_task(task.task_id, *fault)


def bad_task(task_id: str, field: str, problem: str, fix: str = REWRITE) -> RolloutError:
    return RolloutError("bad_task", f"task {task_id}: {field} {problem}; {fix}")


class ServerSection(Section):
    """Names a server: a program to start, or the URL of one that runs."""

    url: str | None = None
    command: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _is_one_server(self) -> Self:
        if (self.url is None) == (not self.command):
            raise ValueError("needs either `command`, which starts a server, or `url`, of one that runs")
        return self


class McpServer(ServerSection):
    """Names a server of MCP."""

    command: tuple[str, ...] = ()
    """Starts the server, which talks over stdin and stdout, for each rollout, and once to list its tools, also for
    `--dry-run`. It starts in a fresh folder, for whose path `{folder}` stands. Of our variables it has PATH, HOME and
    their like; `env NAME=VALUE` before the program adds one."""
    url: str | None = None
    """Names a server that runs, with its path, such as http://HOST:PORT/mcp."""
    tools: tuple[str, ...] = ()
    """Names the tools that are shown; by default all."""
    reply_s: PositiveFloat = 60.0
    """Limits the seconds until the server is ready, and those of one call."""


class VerifiersEntry(EnvironmentEntry):
    """Names a taskset of verifiers and the harness that plays it."""

    kind: Literal["verifiers"]
    taskset: Mapping[str, Any]
    """Holds the `id` of an installed taskset, and its settings."""
    harness: Mapping[str, Any] = {"id": "null"}
    """Holds the `id` of the harness that talks to the policy, and its settings. `null` has only the taskset's tools."""
    runtime: Mapping[str, Any] | None = None
    """Says where the harness runs, such as {type: docker}. One that runs what the policy wrote has no default; others
    run as a process on this machine."""

    def open(self, key: str, max_turns: int) -> AgentEnvironment:
        """Load the taskset. Raises RecipeError, which names the key."""
        from core.environments.verifiers import VerifiersEnvironment

        try:
            return VerifiersEnvironment(self, max_turns)
        except Exception as error:  # packages of others fail in their own ways
            missing = isinstance(error, ModuleNotFoundError) and "verifiers" in (error.name or "").split(".")
            fix = "; install it with pip install 'tokentrue[verifiers]'" if missing else ""
            raise RecipeError(f"{key}: {error}{fix}") from error


class OpenEnvEntry(EnvironmentEntry, ServerSection):
    """Names an OpenEnv server, and says how a reply of the policy becomes an action."""

    kind: Literal["openenv"]
    url: str | None = None
    """Names a server that runs, as http://HOST:PORT."""
    command: tuple[str, ...] = ()
    """Starts a server on this machine instead; `{port}` in a word is a free port. It ends when we do."""
    reset: Mapping[str, Any] = {"seed": INDEX}
    """Holds the options of `reset`; "{index}" anywhere in them stands for the task's `metadata.index`."""
    action: str | None = None
    """Names the field of an action that holds the policy's reply. None: the policy calls the environment's tools."""
    show: tuple[str, ...] = ()
    """Names the fields of an observation that the policy sees; by default all, as JSON."""
    system: str = ""
    """Begins the system message."""
    sessions: PositiveInt = 1
    """Limits the rollouts that the server plays at once. It refuses more than it was made for, often 1."""
    reply_s: PositiveFloat = 60.0
    """Limits the seconds that the server may take for an answer; then the rollout fails as `environment`."""

    def open(self, key: str, max_turns: int) -> AgentEnvironment:
        """Prepare the environment; its server starts with the first task. The gateway counts the turns."""
        from core.environments.openenv import OpenEnvEnvironment

        return OpenEnvEnvironment(self, key)


class McpEntry(EnvironmentEntry):
    """Lends the tools of MCP servers to our plain agent, whose answer the agent's `reward` looks at.

    `metadata.files` of a record, as path -> text, lie in the folder of its rollout. In the task that `reward` gets, it
    is what lies there in the end.
    """

    has_tasks: ClassVar[bool] = False
    kind: Literal["mcp"]
    servers: Mapping[str, McpServer] = Field(min_length=1)
    system: str = ""
    """Begins the system message."""

    def open(self, key: str, max_turns: int) -> AgentEnvironment:
        """Prepare the agent, and see that its servers start. Raises RecipeError, which names the key."""
        from core.environments.mcp import McpEnvironment, read_schemas

        read_schemas(key, self.servers)
        return McpEnvironment(self)

    def find_fault(self, task: Task) -> tuple[str, str, str] | None:
        from core.sandbox.workspace import find_bad_path

        files = task.metadata.get("files") or {}
        fault = find_bad_path(files)
        if files and not any(server.command for server in self.servers.values()):
            fault = "lie in a folder that no server of a `url` sees", "start one by its `command`, or leave them out"
        return fault and ("metadata.files", *fault)


AnyEnvironment = Annotated[VerifiersEntry | OpenEnvEntry | McpEntry, Field(discriminator="kind")]
"""Describes the environment of an agent; `kind` says of which standard."""
