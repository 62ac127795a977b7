"""Servers of the Model Context Protocol in recipes, with a stand-in for the package: it speaks no protocol."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from agentic.agent.rollout import SPEC, build, check_task
from agentic.agent.world import WORLD
from core.config import RecipeError
from core.data import DataError, read_tasks
from core.environments.mcp import McpServer, McpTool, open_servers
from core.policy.base import Roles
from core.rollout.method import RolloutError
from core.rollout.runner import Runner
from core.tools.base import Toolbox, ToolContext
from core.types import Sampling, Task, Trajectory
from tests.kit import call, replace_mcp, script_policy

HERE = __name__
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


class Fault(Exception):
    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


class Client:
    """Plays a server that keeps files; `shown` has its tools, one a page."""

    shown = ("list_files", "write", "die", "lie", "slow", "refuse", "read", "count")

    def __init__(self, server: Any, read_timeout_seconds: float):
        self.folder = Path(server["cwd"])
        self.arguments = server["args"]

    async def __aenter__(self) -> Client:
        if "missing" in self.arguments:
            raise ExceptionGroup("wrapped", [OSError("no such program")])
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception):
            raise ExceptionGroup("wrapped", [error])  # as a group of tasks does

    async def list_tools(self, cursor: str | None = None) -> Any:
        place = int(cursor or 0)
        name = self.shown[place]
        schema = PATH if name == "write" else NO_ARGUMENTS
        tool = SimpleNamespace(name=name, description=None if name == "die" else f"It can {name}.", input_schema=schema)
        return SimpleNamespace(tools=[tool], next_cursor=str(place + 1) if place + 1 < len(self.shown) else None)

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        if name == "die":
            raise Fault(-32000, "Connection closed")
        if name == "lie":
            raise RuntimeError("Invalid structured content")  # the client's own error has no code
        if name == "slow":
            raise Fault(-32001, "timed out")
        if name == "write":
            (self.folder / arguments["path"]).write_text("new")
        found = [str(path) for path in sorted(self.folder.rglob("*")) if path.is_file()]
        said = [SimpleNamespace(type="text", text=" ".join([*found, str(self.folder)])), SimpleNamespace(type="image")]
        if name == "read":
            said = [SimpleNamespace(type="resource", resource=SimpleNamespace(text="embedded"))]
        counted = {"count": len(found)} if name == "count" else None
        said = [] if counted else said
        return SimpleNamespace(content=said, is_error=name == "refuse", structured_content=counted)


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_mcp(monkeypatch, Client)


def reward(task: Task, answer: str) -> float:
    """Return the number of files; an answer that is wrong costs 10."""
    return len(task.metadata["files"]) - 10 * (answer != "done")


def load(**environment: Any) -> Any:
    agent = {"environment": {"kind": "mcp", "servers": {"disk": {"command": ["python"]}}, **environment}}
    recipe = SPEC.load("tiny", ["model.max_model_len=3000"])
    section = recipe.agent.model_validate({"agents": {"x": {**agent, "reward": f"{HERE}.reward"}}})
    return recipe.model_copy(update={"agent": section})


async def play(words: list[str], files: dict[str, str] | None = None) -> tuple[Trajectory, str]:
    tokenizer: Any = WORLD.train_tokenizer()
    team, policy = build(load(system="Be brief."), tokenizer), script_policy(tokenizer, words)
    runner = Runner(team, Roles({"policy": policy}), concurrency=1, deadline_s=60)
    done = await runner.run_one(Task("1", "Go.", ("x",), metadata={"files": files or {}}), Sampling())
    await team.close()
    return done, tokenizer.decode(done.turns[-1].prompt_ids) if done.turns else ""


async def test_an_agent_writes_a_file_that_its_reward_sees() -> None:
    words = [call("list_files"), call("write", path="b.txt"), "done"]
    done, shown = await play(words, {"deep/a.txt": "old"})
    assert (done.status, done.reward) == ("completed", 2.0), done.log
    assert "Be brief." in shown
    assert "deep/a.txt .\n[image]" in shown, "where the folder lies is not shown"
    assert "b.txt deep/a.txt .\n[image]" in shown
    again, shown = await play(words)
    assert (again.reward, "deep" in shown) == (1.0, False)


async def test_a_server_that_ends_fails_the_rollout_by_name_and_a_fault_is_told() -> None:
    done, _ = await play([call("die"), "done"])
    assert (done.status, done.failure) == ("failed", "environment")
    assert "the MCP server disk ended during die: Connection closed" in str(done.log)
    done, _ = await play([call("lie"), "done"])
    assert (done.status, done.failure) == ("failed", "environment")
    assert "the MCP server disk failed with RuntimeError at lie: Invalid structured content" in str(done.log)
    shown_as = {"slow": "error: timed out", "refuse": "error: .\n[image]", "read": "embedded", "count": '{"count": 0}'}
    for name, told in shown_as.items():
        done, shown = await play([call(name), "done"])
        assert (done.status, done.reward) == ("completed", 0.0)
        assert told in shown


async def test_a_limit_ends_a_rollout_whose_files_count_all_the_same() -> None:
    done, _ = await play([call("write", path="b.txt")])  # for ever
    assert (done.status, done.reward) == ("truncated", 1.0 - 10)


@pytest.mark.parametrize("files", [{"../a": "x"}, {"/etc/a": "x"}, {"": "x"}, {"a": "x", "a/b": "x"}])
async def test_files_that_no_folder_can_hold_are_refused(files: Any, tmp_path: Path) -> None:
    """Before training with file and record, and in a rollout."""
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"question": "Go.", "answer": "x", "metadata": {"files": files}}))
    with pytest.raises(DataError, match=r"data\.jsonl:1: field .metadata\.files.: has .*\. Fix: "):
        read_tasks(data, **SPEC.reading_options(load()))
    done, _ = await play(["done"], files)
    assert done.failure == "bad_task"
    task = Task("1", "Go.", ("x",), metadata={"files": {"a/b": "x"}})
    assert check_task(load(), task) is None
    by_url = load(servers={"a": {"url": "http://a"}})
    assert "no server of a `url` sees" in str(check_task(by_url, task))


@pytest.mark.parametrize(
    ("servers", "told"),
    [
        ({"a": {"command": ["python", "missing"]}}, "a is not ready: OSError: no such program"),
        (
            {"a": {"command": ["p"], "tools": ["fly"]}},
            "a is not ready: LookupError: fly is a tool of two servers, or no",
        ),
        (
            {"a": {"command": ["p"]}, "b": {"command": ["p"]}},
            "b is not ready: LookupError: list_files is a tool of two",
        ),
    ],
)
def test_what_is_not_there_is_refused_before_training(servers: Any, told: str) -> None:
    with pytest.raises(RecipeError, match=rf"agent.agents.x.environment: the MCP server {told}"):
        build(load(servers=servers), WORLD.train_tokenizer())


def test_without_the_package_a_recipe_is_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(RecipeError, match=r"pip install 'tokentrue\[mcp\]'"):
        build(load(), WORLD.train_tokenizer())


def test_a_server_is_one_and_its_agent_has_the_reward_that_sees_the_files() -> None:
    for wrong in ({}, {"command": ["a"], "url": "http://a"}):
        with pytest.raises(ValidationError, match="needs either `command`"):
            McpServer.model_validate(wrong)
    for more in ([], [f"reward={HERE}.reward", f"agent.agents.x.reward={HERE}.reward"]):
        servers = '{"x": {"environment": {"kind": "mcp", "servers": {"a": {"url": "http://a"}}}}}'
        with pytest.raises(RecipeError, match=r"agents\.x\.reward rewards an agent of the kind mcp"):
            SPEC.load("tiny", [f"agent.agents={servers}", *more])


async def test_a_planners_tool_is_one_of_a_server() -> None:
    tool = McpTool(name="store", server=McpServer(command=("python",), tools=("write",)))
    assert tool.describe().startswith("store\n  Description: It can write.\n  Arguments, as JSON schema: {")
    ask: Callable[..., Any] = Toolbox([tool]).call
    assert (await ask(tool, {"path": "c.txt"}, ToolContext())).text == "c.txt .\n[image]"
    assert (await ask(tool, {}, ToolContext())).status == "bad_arguments"
    dead = McpTool(name="store", server=McpServer(command=("python",), tools=("die",)))
    with pytest.raises(RolloutError, match="the MCP server store ended during die"):  # AgentFlow would train on it
        await ask(dead, {}, ToolContext())
    with pytest.raises(Exception, match=r"name one tool of the server, as server.tools=\[list_files\]"):
        McpTool(name="store", server=McpServer(command=("python",)))


async def test_an_error_of_the_caller_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_servers({"a": McpServer(command=("python",))}, {}) as (folder, _):
            raise KeyError("mine")
    assert not folder.exists()
