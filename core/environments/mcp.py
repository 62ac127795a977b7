"""Servers of the Model Context Protocol: their tools for an agent (kind `mcp`), or one tool for a planner (McpTool).

A server that is started here serves one rollout, or one call of McpTool, and ends with it: no rollout finds what
another has left. It is a program of the user's, and runs in no sandbox. All this needs the package `mcp`.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, PrivateAttr

from core.environments.sections import AgentEnvironment, McpEntry, McpServer
from core.environments.tool_loop import AgentTool, LimitReached, run_tool_loop
from core.gateway import Endpoint, Outcome, find_program
from core.options import RecipeError
from core.rollout.method import RolloutError
from core.text.tool_calls import ToolCall, ToolSchema, check_call
from core.tools.base import Arguments, Interrupt, Tool, ToolContext, ToolError, ToolResult
from core.types import Task

FAILED = "error: "
"""Begins what a failed call says."""


@asynccontextmanager
async def open_servers(
    servers: Mapping[str, McpServer], files: Mapping[str, str]
) -> AsyncIterator[tuple[Path, list[AgentTool]]]:
    """Start or connect to servers; give their folder, with `files` in it, and their tools. What was started is ended.

    Raises:
        RolloutError: a server is not ready, or does not have the tools (`environment`); the message names it.
    """
    from mcp import Client, StdioServerParameters, stdio_client

    name, state, tools = "", "is not ready", dict[str, AgentTool]()
    thrown: Exception | None = None  # by our caller; the client would make a group of it
    with tempfile.TemporaryDirectory(prefix="mcp-") as folder, tempfile.TemporaryFile("w+") as log:
        for path, text in files.items():
            Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, path).write_bytes(text.encode())
        try:
            async with AsyncExitStack() as stack:
                for name, server in servers.items():
                    opens: Any = server.url
                    if server.command:
                        program, *words = find_program(server.command)
                        words = [word.replace("{folder}", folder) for word in words]
                        opens = stdio_client(StdioServerParameters(command=program, args=words, cwd=folder), errlog=log)
                    async with asyncio.timeout(server.reply_s):
                        client = await stack.enter_async_context(Client(opens, read_timeout_seconds=server.reply_s))
                        listed = await client.list_tools()
                        found = {tool.name: tool for tool in listed.tools}
                        while listed.next_cursor:
                            listed = await client.list_tools(cursor=listed.next_cursor)
                            found |= {tool.name: tool for tool in listed.tools}
                    shown = server.tools or tuple(found)
                    if wrong := [tool for tool in shown if tool in tools or tool not in found]:
                        raise LookupError(f"{wrong[0]} is a tool of two servers, or none of its {', '.join(found)}")
                    for one in map(found.__getitem__, shown):
                        schema = ToolSchema(one.name, one.description or "", one.input_schema)
                        tools[one.name] = AgentTool(schema, partial(call_tool, client, name, folder, one.name))
                name, state = " or ".join(servers), "has ended"
                try:
                    yield Path(folder), [*tools.values()]
                except Exception as error:
                    thrown = error
        except Exception as error:
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            log.seek(0)
            said = f"{type(cause).__name__}: {cause} {log.read()[-500:]}".strip()
            thrown = thrown or RolloutError("environment", f"the MCP server {name} {state}: {said}")
        if thrown is not None:
            raise thrown


async def call_tool(client: Any, server: str, folder: str, tool: str, /, **arguments: Any) -> str:
    """Return what a tool says; where it failed or took too long, that begins with FAILED.

    Raises:
        RolloutError: the server has ended, cannot be reached, or breaks its protocol (`environment`).
    """
    from mcp_types import CONNECTION_CLOSED

    try:
        result = await client.call_tool(tool, arguments)
        parts = [show_part(part) for part in result.content]
        structured = getattr(result, "structured_content", None)
        if not parts and structured is not None:  # some servers say all there
            parts = [json.dumps(structured, ensure_ascii=False)]
        said = (FAILED if result.is_error else "") + "\n".join(parts)
    except Exception as error:
        code = getattr(error, "code", None)  # errors of HTTP, and of a result against its schema, have none
        if code in (None, CONNECTION_CLOSED):
            what = "ended during" if code else f"failed with {type(error).__name__} at"
            raise RolloutError("environment", f"the MCP server {server} {what} {tool}: {error}") from error
        said = f"{FAILED}{error}"
    # Where the folder lies is chance: a run repeats only if the policy does not see it.
    return said.replace(f"{folder}/", "").replace(folder, ".")


def show_part(part: Any) -> str:
    """Return the text of a part of a result, which a resource within it may hold; what is no text is named."""
    text = part.text if part.type == "text" else getattr(getattr(part, "resource", None), "text", None)
    return f"[{part.type}]" if text is None else str(text)


def read_schemas(key: str, servers: Mapping[str, McpServer]) -> list[ToolSchema]:
    """Open the servers once, and return their tools. Raises RecipeError, which names the key, for what is not there."""

    async def read() -> list[ToolSchema]:
        async with open_servers(servers, {}) as (_, tools):
            return [tool.schema for tool in tools]

    try:
        with ThreadPoolExecutor(1) as thread:  # a loop may run in this one
            return thread.submit(asyncio.run, read()).result()
    except (ImportError, RolloutError) as error:
        fix = "; it needs pip install 'tokentrue[mcp]'" if isinstance(error, ImportError) else ""
        raise RecipeError(f"{key}: {error}{fix}") from error


class McpEnvironment(AgentEnvironment):
    """Runs the plain agent with the tools of servers."""

    def __init__(self, entry: McpEntry):
        self.entry = entry

    async def __call__(self, task: Task, endpoint: Endpoint) -> Outcome:
        self.entry.check(task)
        answer, truncated = "", False
        async with open_servers(self.entry.servers, task.metadata.get("files") or {}) as (folder, tools):
            try:
                answer = await run_tool_loop(endpoint, task.messages, tools, self.entry.system)
            except LimitReached:
                truncated = True
            left = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
            files = {path.relative_to(folder).as_posix(): path.read_bytes().decode(errors="replace") for path in left}
        seen = replace(task, metadata={**task.metadata, "files": files})
        return Outcome(answer, truncated=truncated, task=seen)


class ServerFault(RolloutError, Interrupt):
    """Fails the rollout that calls a tool of a server which is not ready, or has ended: no call is to blame."""


class AnyArguments(Arguments):
    """Holds arguments that a server describes."""

    model_config = ConfigDict(extra="allow", frozen=True)


class McpTool(Tool):
    """Calls one tool of a server, which is started or connected to for each call."""

    arguments: ClassVar[type[Arguments]] = AnyArguments

    description: str = ""
    """Tells the planner what the tool does; by default what the server says. Its schema follows."""
    server: McpServer
    """Names the server, and in `tools` the tool."""
    _schema: ToolSchema = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        self._schema, *others = read_schemas(f"tool {self.name}", {self.name: self.server})
        if others:
            raise ToolError(f"tool {self.name}: name one tool of the server, as server.tools=[{self._schema.name}]")
        schema = json.dumps(self._schema.parameters, ensure_ascii=False)
        described = f"{self.description or self._schema.description}\n  Arguments, as JSON schema: {schema}"
        vars(self)["description"] = described  # the tool is frozen from here on

    async def call(self, arguments: AnyArguments, context: ToolContext) -> ToolResult:
        given = arguments.model_dump()
        if error := check_call(ToolCall(self._schema.name, given), [self._schema]):
            return ToolResult("bad_arguments", error.message, error=error.kind)
        try:
            async with open_servers({self.name: self.server}, {}) as (_, [tool]):
                said = await tool.run(**given)
        except RolloutError as fault:
            raise ServerFault(fault.kind, str(fault)) from fault
        return ToolResult("error", said, error=said) if said.startswith(FAILED) else ToolResult("ok", said)
