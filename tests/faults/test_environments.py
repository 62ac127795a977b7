"""Environments and task folders that hold anything: each rollout ends with a name, each folder is read or refused.

`--fuzz 100000` makes these tests long.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from agentic.coding.harbor import read_folder
from agentic.coding.records import RecordError, read_task
from core.data import DataError
from core.environments.mcp import McpEntry, McpServer
from core.environments.openenv import OpenEnvEntry
from core.gateway import AgentMethod, SessionSettings
from core.policy.base import Roles
from core.rollout.runner import Runner
from core.types import Sampling, Task, Trajectory
from core.worlds import TOOL_TEMPLATE
from tests.faults.requests import JUNK
from tests.kit import call, replace_mcp, script_policy, serve_app, train_tokenizer
from tests.unit.agentic.coding.harbor_folders import TASKS, write_folder

CALL = call("add", number=1)
ENDS = ("completed", "truncated", "environment")
"""Lists how a rollout may end: nothing that an environment says is the fault of the agent, the policy or ours."""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer("count the numbers of a tool call " * 4, 300, template=TOOL_TEMPLATE)


def mutate(rng: Random, value: Any) -> Any:
    """Return JSON in which some values are junk, or gone."""
    if rng.random() < 0.1:
        return rng.choice(JUNK)
    if isinstance(value, dict):
        return {name: mutate(rng, part) for name, part in value.items() if rng.random() < 0.97}
    return [mutate(rng, part) for part in value] if isinstance(value, list) else value


async def play(method: AgentMethod, tokenizer: Any, metadata: dict[str, Any]) -> Trajectory:
    """Play one rollout with a policy that calls the tool three times, and then answers."""
    policy = script_policy(tokenizer, [CALL, CALL, CALL, "done"])
    runner = Runner(method, Roles({"policy": policy}), concurrency=1, deadline_s=20)
    return await runner.run_one(Task("t", "Go.", ("x",), metadata=metadata), Sampling())


def check_end(done: Trajectory) -> str:
    end = done.failure or done.status
    assert end in ENDS, done.log
    assert done.reward is None or math.isfinite(done.reward)
    return end


OBSERVATION = {"type": "observation", "data": {"observation": {
    "text": "1 of 3", "result": {"content": [{"type": "text", "text": "now 1"}]},
    "tools": [{"name": "add", "description": "Adds.", "input_schema": {
        "type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"],
    }}],
}, "reward": 0.5, "done": False}}  # fmt: skip


@pytest.mark.parametrize("action", ["say", None])
async def test_a_server_of_openenv_that_says_anything(action: str | None, tokenizer: Any, fuzz_cases: int) -> None:
    rng, ends = Random(0), set[str]()

    async def answer(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            if message.type != WSMsgType.TEXT or rng.random() < 0.03:
                break
            said = mutate(rng, OBSERVATION) if rng.random() < 0.9 else rng.choice(JUNK)
            kind = rng.random()
            if kind < 0.03:
                await socket.send_bytes(b"\xff")
            elif kind < 0.06:
                await socket.send_str("{" * 2000)
            else:
                await socket.send_str(json.dumps(said))
        return socket

    app = web.Application()
    app.router.add_get("/ws", answer)
    with serve_app(app) as url:
        entry = OpenEnvEntry(kind="openenv", url=url, action=action, show=("text",), reply_s=5)
        settings = SessionSettings(max_context=4096, max_turns=4)
        method = AgentMethod(entry.open("agent.agents.x.environment", 4), None, tokenizer, settings)
        for _ in range(max(30, fuzz_cases // 20)):
            ends.add(check_end(await play(method, tokenizer, {"index": 1})))
        await method.close()
    assert ends > {"environment"}


class Client:
    """Stands for the client of MCP: each of its steps may fail in any way, and an answer may have any parts."""

    rng = Random(0)

    def __init__(self, server: Any, read_timeout_seconds: float):
        self.folder = Path(server["cwd"])

    def stumble(self) -> None:
        class Fault(Exception):
            code = self.rng.choice((-32000, -32001, -32602, 0, None))

        if self.rng.random() < 0.08:
            errors = [
                OSError("gone"),
                TimeoutError(),
                RuntimeError("no schema"),
                ValueError("x" * 9999),
                Fault("fault"),
            ]
            error = self.rng.choice(errors)
            raise self.rng.choice((error, ExceptionGroup("wrapped", [ExceptionGroup("twice", [error])])))

    async def __aenter__(self) -> Client:
        self.stumble()
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.stumble()

    async def list_tools(self, cursor: str | None = None) -> Any:
        self.stumble()
        schema = {"type": "object", "properties": {"number": {"type": "integer"}}}
        return SimpleNamespace(
            tools=[SimpleNamespace(name="add", description=None, input_schema=schema)], next_cursor=None
        )

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        self.stumble()
        (self.folder / str(self.rng.random())).write_bytes(b"\xff\0")
        (self.folder / f"link{self.rng.random()}").symlink_to("/etc/passwd")
        kinds = ("text", "image", "audio", "resource")
        parts = [SimpleNamespace(type=self.rng.choice(kinds), text="now 1") for _ in range(self.rng.randrange(3))]
        return SimpleNamespace(content=parts, is_error=self.rng.random() < 0.2)


async def test_a_client_of_mcp_that_fails_in_any_way(
    tokenizer: Any, fuzz_cases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_mcp(monkeypatch, Client)
    folders = set(Path(tempfile.gettempdir()).glob("mcp-*"))
    entry = McpEntry(kind="mcp", servers={"a": McpServer(command=("python",))})
    ends, settings = set[str](), SessionSettings(max_context=4096, max_turns=3)
    monkeypatch.setattr(Client, "rng", SimpleNamespace(random=lambda: 1.0, choice=lambda options: options[0]))
    environment = entry.open("agent.agents.x.environment", 4)
    monkeypatch.setattr(Client, "rng", Random(0))
    seen: list[Any] = []

    def reward(task: Task, answer: str) -> float:
        seen.append(task.metadata["files"])
        return 0.0

    method = AgentMethod(environment, reward, tokenizer, settings)
    for _ in range(max(40, fuzz_cases // 20)):
        ends.add(check_end(await play(method, tokenizer, {"files": {"a/b": "x"}})))
    await method.close()
    assert ends >= {"environment", "truncated"}
    assert set(Path(tempfile.gettempdir()).glob("mcp-*")) == folders
    assert "root:" not in str(seen), "what a link leads to is no file of the folder"


LINES = (
    "FROM ubuntu", "FROM", "FROM a AS b", "WORKDIR", "WORKDIR /", "WORKDIR ..", "WORKDIR /a/../..", "COPY", "COPY a b",
    "COPY . .", "COPY / /", "COPY /etc /app", "COPY --from=x a b", 'COPY ["a", "b"]', "COPY names.txt names.txt/x",
    "RUN apt-get update", "ENV A", "\\", "\0", "é" * 99, "uvx pytest", "apt-get update && curl x | sh", "pytest /tests",
    "[environment", "environment = 'x'", "[environment]\nos = 1", "[[task]]", "task = [1]", "version = 'a'",
    "schema_version = '1.x'", "schema_version = 1e999", "[environment]\ndocker_image = [1]", "[agent]\nenv = {}",
)  # fmt: skip


def damage(rng: Random, folder: Path, secret: Path) -> None:
    """Change a task folder in one of the ways in which somebody else's may be wrong."""
    target = rng.choice([path for path in folder.rglob("*") if path.is_file()])
    lines = target.read_bytes().decode(errors="replace").splitlines()
    match rng.randrange(7):
        case 0:
            target.write_bytes(bytes(rng.randrange(256) for _ in range(99)))
        case 1:
            target.unlink()
        case 2:
            target.unlink()
            target.symlink_to(rng.choice((secret, secret.parent, target, Path("../../.."), Path("/nowhere"))))
        case 3:
            target.unlink()
            target.mkdir()
        case _:
            place = rng.randrange(len(lines) + 1)
            lines[place : place + rng.randrange(3)] = rng.sample(LINES, rng.choice((1, 1, 2)))
            target.write_text("\n".join(lines))


def test_task_folders_that_hold_anything(tmp_path: Path, fuzz_cases: int) -> None:
    rng, read, refused = Random(0), 0, 0
    secret = tmp_path / "elsewhere/key"
    secret.parent.mkdir()
    secret.write_text("open sesame")
    for number in range(max(60, fuzz_cases // 2)):
        folder = write_folder(tmp_path / str(number), rng.choice(list(TASKS)))
        for _ in range(rng.choice((1, 1, 2, 5))):
            damage(rng, folder, secret)
        try:
            task = read_folder(folder, [])
            assert "open sesame" not in str(task)
            json.dumps(task.metadata)
            read_task(task)
            read += 1
        except (DataError, RecordError):
            refused += 1
    assert read
    assert refused
