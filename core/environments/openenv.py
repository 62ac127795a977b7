"""Environments of OpenEnv, over the WebSocket of their server: `reset`, `step`, rewards, and tools by MCP.

The protocol is small, and the package `openenv` excludes versions that verifiers needs. So this is a client of our own,
and a server runs in an environment that has its package.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from pydantic import BaseModel, FiniteFloat, TypeAdapter

from core.environments.sections import INDEX, AgentEnvironment, OpenEnvEntry, bad_task
from core.environments.tool_loop import AgentTool, LimitReached, run_tool_loop
from core.gateway import Endpoint, Outcome
from core.policy.server_process import ServerError, find_free_port, run_server
from core.rollout.method import RolloutError
from core.text.tool_calls import ToolSchema
from core.types import Task

logger = logging.getLogger(__name__)

START_S = 300.0
"""Limits the seconds until a started server answers."""


class OpenEnvEnvironment(AgentEnvironment):
    """Plays an environment, one WebSocket a rollout."""

    def __init__(self, entry: OpenEnvEntry, key: str):
        self.entry = entry
        self.key = key
        self._started = ExitStack()
        self._url: asyncio.Task[str] | None = None
        self._free = asyncio.Semaphore(entry.sessions)
        self._told = False

    def _start(self) -> str:
        if self.entry.url is not None:
            return self.entry.url.rstrip("/")
        port = find_free_port("127.0.0.1")
        log = Path(self._started.enter_context(tempfile.TemporaryDirectory()), "server.log")
        command = [word.replace("{port}", str(port)) for word in self.entry.command]
        return self._started.enter_context(run_server(command, f"http://127.0.0.1:{port}", log=log, start_s=START_S))

    @asynccontextmanager
    async def _reset(self, index: int) -> AsyncIterator[OpenEnvEpisode]:
        """Yield a new episode of the environment."""
        if self._url is None:
            self._url = asyncio.create_task(asyncio.to_thread(self._start))
        if self._free.locked() and not self._told:
            self._told = True
            logger.warning(
                "%s: sessions=%d, so rollouts wait for one another, and their rollout.deadline_s goes on; raise it if "
                "the server plays more, or lower rollout.concurrency",
                self.key,
                self.entry.sessions,
            )
        async with self._free, aiohttp.ClientSession() as http, AsyncExitStack() as stack:
            try:
                url = await asyncio.shield(self._url)
                ws = await stack.enter_async_context(http.ws_connect(f"{url}/ws", max_msg_size=0))
                episode = OpenEnvEpisode(self.entry, ws)
                episode.shown = episode.show(await episode.send("reset", fill_index(self.entry.reset, index)))
            except (ServerError, aiohttp.ClientError, OSError) as error:
                raise RolloutError("environment", f"{self.key}: {type(error).__name__}: {error}") from error
            yield episode

    async def read_task(self, index: int) -> tuple[str, str | None]:
        async with self._reset(index) as first:
            pass
        async with self._reset(index) as again:
            return first.shown, first.key if first.shown == again.shown else None

    async def __call__(self, task: Task, endpoint: Endpoint) -> Outcome:
        self.entry.check(task)
        async with self._reset(task.metadata["index"]) as episode:
            if task.metadata.get("key") not in (None, episode.key):
                raise bad_task(task.task_id, "metadata.key", f"is not that of {self.key}'s first observation")
            truncated, shown = False, task
            if task.metadata.get("key", "") is None:  # each reset begins anew, and what this one begins with counts
                shown = replace(task, question=episode.shown)
            try:
                tools, follow = (await episode.list_tools(), None) if self.entry.action is None else ([], episode.act)
                episode.answer = await run_tool_loop(endpoint, shown.messages, tools, self.entry.system, follow)
            except EpisodeDone:
                pass
            except LimitReached:
                truncated = True
            # Without a step nothing is earned. After one, no reward at all is a fault of the environment.
            reward = episode.reward if episode.stepped else 0.0
            return Outcome(episode.answer, reward, truncated=truncated, task=shown)

    async def close(self) -> None:
        if self._url is not None:
            await asyncio.gather(self._url, return_exceptions=True)  # it may be starting
        await asyncio.to_thread(self._started.close)
        self._url = None


def fill_index(value: Any, index: int) -> Any:
    """Return the options of `reset` with the number of a task in the place of INDEX, wherever that stands in them."""
    if isinstance(value, Mapping):
        return {name: fill_index(part, index) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [fill_index(part, index) for part in value]
    return index if value == INDEX else value.replace(INDEX, str(index)) if isinstance(value, str) else value


class Told(BaseModel):
    """What a message of a server holds: an observation and what it earned, or an error."""

    observation: dict[str, Any] | None = None
    reward: FiniteFloat | None = None
    done: bool | None = False
    code: str | None = None
    message: str = ""
    errors: list[dict[str, Any]] = []


class OpenEnvMessage(BaseModel):
    """A message of a server."""

    data: Told


class ListedTool(BaseModel):
    """A tool as a server lists it."""

    name: str
    description: str | None = ""
    input_schema: dict[str, Any]


class EpisodeDone(Exception):
    """Says that the environment ended the episode."""


class OpenEnvEpisode:
    """Holds one episode: what it began with, and what its steps earned so far."""

    def __init__(self, entry: OpenEnvEntry, socket: aiohttp.ClientWebSocketResponse):
        self.entry = entry
        self.socket = socket
        self.shown = self.answer = ""
        self.stepped = False
        self.reward: float | None = None

    @property
    def key(self) -> str:
        return hashlib.sha256(self.shown.encode()).hexdigest()[:16]

    async def send(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Send one message and return the observation. An action that the environment cannot read is told as `error`.

        Raises:
            EpisodeDone: a step ended the episode.
            RolloutError: `environment`, if the server reports a fault, ends, or does not answer in time.
        """
        try:
            await self.socket.send_json({"type": kind, "data": data})
            told = OpenEnvMessage.model_validate_json(await self.socket.receive_str(timeout=self.entry.reply_s)).data
        except (TypeError, ValueError, TimeoutError, aiohttp.ClientError) as error:
            what = f"gave no answer in {self.entry.reply_s:g} s" if isinstance(error, TimeoutError) else "closed"
            what = f"gave no message of OpenEnv ({error})" if isinstance(error, ValueError) else what
            raise RolloutError("environment", f"the environment's server {what} at {kind} {data}"[:500]) from error
        if kind == "step" and told.code == "VALIDATION_ERROR":
            return {"error": [one.get("msg") for one in told.errors] or told.message}
        if told.observation is None:
            raise RolloutError("environment", f"the environment refused {kind}: {told.code}: {told.message}")
        if kind == "step" and data.get("type") != "list_tools":
            self.stepped = True
            if told.reward is not None:
                self.reward = (self.reward or 0.0) + told.reward
            if told.done:
                raise EpisodeDone
        return told.observation

    def show(self, observation: Mapping[str, Any]) -> str:
        """Return what the policy sees of an observation."""
        if observation.keys() == {"error"} or not self.entry.show:  # an observation may have such a field, too
            return json.dumps(observation, ensure_ascii=False)
        if missing := [name for name in self.entry.show if name not in observation]:
            raise RolloutError("environment", f"show: no {missing[0]!r} in an observation of {sorted(observation)}")
        shown = [observation[name] for name in self.entry.show]
        return "\n".join(one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in shown)

    async def act(self, reply: str) -> str:
        """Send a reply of the policy as an action, and return what it sees then."""
        self.answer = reply
        return self.show(await self.send("step", {str(self.entry.action): reply}))

    async def list_tools(self) -> list[AgentTool]:
        """Return the environment's tools."""
        listed = await self.send("step", {"type": "list_tools"})
        try:
            tools = TypeAdapter(list[ListedTool]).validate_python(listed.get("tools"))
        except ValueError as error:
            fix = "name a field of its actions as `action`"
            raise RolloutError("environment", f"the environment lists no tools; {fix} ({error})"[:500]) from error
        return [
            AgentTool(ToolSchema(one.name, one.description or "", one.input_schema), partial(self.call, one.name))
            for one in tools
        ]

    async def call(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool, and return what it says."""
        told = await self.send("step", {"type": "call_tool", "tool_name": tool, "arguments": arguments})
        if "result" not in told and not told.get("error"):
            return self.show(told)
        result = told.get("error") or told["result"]
        parts = result.get("content") if isinstance(result, dict) else None
        if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
            return json.dumps(result, ensure_ascii=False)
        # What is no text is named, as for servers of MCP (mcp.py).
        return "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in parts)
