"""Environments of OpenEnv, over the WebSocket of their server: `reset`, `step`, rewards, and tools by MCP.

The protocol is small, and the package `openenv` excludes versions that verifiers needs. So this is a client of our own,
and a server runs in an environment that has its package.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import aiohttp
from pydantic import PositiveFloat, PositiveInt, model_validator

from core.environments.base import AgentEnvironment, bad_task, find_index
from core.environments.tool_loop import AgentTool, ask, open_http, run_tool_loop
from core.gateway import Endpoint, Outcome
from core.options import Section
from core.policy.server_process import ServerError, find_free_port, run_server
from core.rollout.method import RolloutError
from core.text.tool_calls import ToolSchema
from core.types import Task

START_S = 300.0
"""Limits the seconds until a started server answers."""
INDEX = "{index}"
"""Stands in `reset` for the index of the task."""


class OpenEnvEntry(Section):
    """Names an OpenEnv server, and says how a reply of the policy becomes an action."""

    kind: Literal["openenv"]
    url: str | None = None
    """Names a server that runs, as http://HOST:PORT."""
    command: tuple[str, ...] = ()
    """Starts a server on this machine instead; `{port}` in a word is a free port. It ends when we do."""
    reset: Mapping[str, Any] = {"seed": INDEX}
    """Holds the options of `reset`, of which "{index}" is the task's `metadata.index`."""
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

    @model_validator(mode="after")
    def _is_one_server(self) -> OpenEnvEntry:
        if (self.url is None) == (not self.command):
            raise ValueError("needs either `url`, of a server that runs, or `command`, which starts one")
        return self

    def open(self, key: str, max_turns: int) -> OpenEnvEnvironment:
        """Prepare the environment; its server starts with the first task. The gateway counts the turns."""
        return OpenEnvEnvironment(self, key)


class OpenEnvEnvironment(AgentEnvironment):
    """Plays an environment, one WebSocket a rollout."""

    def __init__(self, entry: OpenEnvEntry, key: str):
        self.entry = entry
        self.key = key
        self._started = ExitStack()
        self._url: asyncio.Task[str] | None = None
        self._free = asyncio.Semaphore(entry.sessions)

    def _start(self) -> str:
        if self.entry.url is not None:
            return self.entry.url.rstrip("/")
        port = find_free_port("127.0.0.1")
        folder = Path(self._started.enter_context(tempfile.TemporaryDirectory(prefix="openenv-")))
        words = [word.replace("{port}", str(port)) for word in self.entry.command]
        command = [sys.executable if words[0] == "python" else words[0], *words[1:]]
        server = run_server(command, f"http://127.0.0.1:{port}", log=folder / "server.log", start_s=START_S)
        return self._started.enter_context(server)

    @asynccontextmanager
    async def _reset(self, index: int) -> AsyncIterator[OpenEnvEpisode]:
        """Yield a new episode of the environment."""
        if self._url is None:
            self._url = asyncio.create_task(asyncio.to_thread(self._start))
        try:
            url = await asyncio.shield(self._url)
            async with (
                self._free,
                aiohttp.ClientSession() as http,
                http.ws_connect(f"{url}/ws", max_msg_size=0) as socket,
            ):
                episode = OpenEnvEpisode(self.entry, socket)
                options = {name: index if value == INDEX else value for name, value in self.entry.reset.items()}
                episode.shown = episode.show(await episode.send("reset", options))
                episode.reward = 0.0
                yield episode
        except (ServerError, aiohttp.ClientError, OSError) as error:
            raise RolloutError("environment", f"{self.key}: {type(error).__name__}: {error}") from error

    async def read_task(self, index: int) -> tuple[str, str | None]:
        async with self._reset(index) as first:
            pass
        async with self._reset(index) as again:
            return first.shown, first.key if first.key == again.key else None

    async def __call__(self, task: Task, endpoint: Endpoint) -> Outcome:
        assert endpoint.session is not None
        async with self._reset(find_index(task)) as episode:
            if task.metadata.get("key", episode.key) != episode.key:
                raise bad_task(task.task_id, f"{self.key} begins it with another observation than metadata.key says")
            answer, truncated = "", False
            try:
                answer = await (episode.call_tools if self.entry.action is None else episode.act)(task, endpoint)
            except EpisodeDone:
                pass
            except RolloutError:
                raise
            except RuntimeError:  # the gateway refused a request
                if not endpoint.session.reached_limit:
                    raise
                truncated = True
            return Outcome(answer, episode.reward, {"steps": float(episode.steps)}, truncated)

    async def close(self) -> None:
        if self._url is not None:
            await asyncio.gather(self._url, return_exceptions=True)  # it may be starting
        await asyncio.to_thread(self._started.close)
        self._url = None


class EpisodeDone(Exception):
    """Says that the environment ended the episode while the policy called a tool."""


class OpenEnvEpisode:
    """Holds one episode: what its steps earned so far, and whether it is done."""

    def __init__(self, entry: OpenEnvEntry, socket: aiohttp.ClientWebSocketResponse):
        self.entry = entry
        self.socket = socket
        self.shown = ""
        self.reward = 0.0
        self.steps = 0
        self.done = False

    @property
    def key(self) -> str:
        return hashlib.sha256(self.shown.encode()).hexdigest()[:16]

    async def send(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Send one message and return the observation. An action that the environment cannot read is told as `error`.

        Raises:
            RolloutError: `environment`, if the server reports a fault, ends, or does not answer in time.
        """
        try:
            await self.socket.send_json({"type": kind, "data": data})
            reply = await self.socket.receive_json(timeout=self.entry.reply_s)
        except (TypeError, ValueError, TimeoutError, aiohttp.ClientError) as error:
            what = f"gave no answer in {self.entry.reply_s:g} s" if isinstance(error, TimeoutError) else "closed"
            raise RolloutError("environment", f"the environment's server {what} at {kind} {data}"[:500]) from error
        data = reply["data"]
        if reply["type"] == "error":
            if kind == "step" and data.get("code") == "VALIDATION_ERROR":
                return {"error": "; ".join(str(one.get("msg")) for one in data.get("errors", ())) or data["message"]}
            raise RolloutError("environment", f"the environment refused {kind}: {data.get('code')}: {data['message']}")
        self.reward += float(data.get("reward") or 0.0)
        self.done = bool(data.get("done"))
        observation: dict[str, Any] = data["observation"]
        return observation

    def show(self, observation: Mapping[str, Any]) -> str:
        """Return what the policy sees of an observation."""
        if "error" in observation or not self.entry.show:
            return json.dumps(observation, ensure_ascii=False)
        if missing := [name for name in self.entry.show if name not in observation]:
            raise RolloutError("environment", f"show: no {missing[0]!r} in an observation of {sorted(observation)}")
        shown = [observation[name] for name in self.entry.show]
        return "\n".join(one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in shown)

    async def act(self, task: Task, endpoint: Endpoint) -> str:
        """Send each reply as an action until the episode is done; return the last one."""
        system = [{"role": "system", "content": self.entry.system}] if self.entry.system else []
        messages: list[dict[str, Any]] = [*system, *map(dict, task.messages)]
        async with open_http(endpoint) as http:
            while True:
                reply = str((await ask(http, endpoint, messages))["content"])
                self.steps += 1
                observation = await self.send("step", {str(self.entry.action): reply})
                if self.done:
                    return reply
                messages.append({"role": "user", "content": self.show(observation)})

    async def call_tools(self, task: Task, endpoint: Endpoint) -> str:
        """Let the policy call the environment's tools; return its first reply without a call."""
        listed = await self.send("step", {"type": "list_tools"})
        if "tools" not in listed:
            raise RolloutError(
                "environment", "the environment lists no tools; name the field of its action as `action`"
            )
        tools = [
            AgentTool(ToolSchema(one["name"], one["description"], one["input_schema"]), partial(self.call, one["name"]))
            for one in listed["tools"]
        ]
        self.reward = 0.0
        return await run_tool_loop(endpoint, task.messages, tools, self.entry.system)

    async def call(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool, and return what it says. Raises EpisodeDone if that was the last step."""
        self.steps += 1
        observation = await self.send("step", {"type": "call_tool", "tool_name": tool, "arguments": arguments})
        if self.done:
            raise EpisodeDone
        if error := observation.get("error"):
            return f"Error: {error.get('message', error) if isinstance(error, dict) else error}"
        result = observation.get("result")
        parts = result.get("content") if isinstance(result, dict) else None
        texts = [str(part["text"]) for part in parts or () if "text" in part]
        return "\n".join(texts) if texts else json.dumps(result, ensure_ascii=False)
