"""Real servers of the Model Context Protocol, of files and of times: recipes train with them, and nothing stays behind.

pip install -r tests/optional/environments/requirements-mcp.txt
npm install --prefix tests/optional/environments/.venv/mcp @modelcontextprotocol/server-filesystem@2026.8.31
SLIME_ROOT=CHECKOUT pytest tests/optional/environments/test_mcp.py
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from agentic.agent.rollout import SPEC, build
from agentic.agentflow.config import make_toolbox
from agentic.agentflow.rollout import SPEC as AGENTFLOW
from core.data import write_jsonl
from core.environments.mcp import McpServer, ServerFault, read_schemas
from core.policy.base import Roles
from core.policy.server_process import find_free_port
from core.rollout.runner import Runner
from core.text.conversation import Renderer
from core.tools.base import ToolContext
from core.types import Sampling, Task, Trajectory
from core.worlds import encode_turn
from tests.contract.backends.case import Case
from tests.kit import call, require, script_policy
from tests.optional.environments.taught import make_tokenizer, run_batch, teach, train_exactly, write_recipe

pytestmark = [pytest.mark.optional, pytest.mark.timeout(900)]
HERE = Path(__file__).parent
PROGRAM = HERE / ".venv/mcp/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"
NAMES = ("files", "clock", "diary")
QUESTIONS = {
    "files": "What is in note.txt?",
    "clock": "What is 10:00 of UTC in Tokyo?",
    "diary": "Write the word yes into day.txt.",
}
CALLS = {
    "files": call("read_text_file", path="note.txt"),
    "clock": call("convert_time", source_timezone="UTC", time="10:00", target_timezone="Asia/Tokyo"),
    "diary": call("write_file", path="day.txt", content="yes"),
}
OWN = """
import os, sys, time
from mcp.server.mcpserver import MCPServer
server = MCPServer("own")
@server.tool()
def add(a: int, b: int) -> str:
    "Adds two numbers."
    return str(a + b)
@server.tool()
def die() -> str:
    os._exit(7)
@server.tool()
def sleep() -> str:
    time.sleep(600)
server.run(*sys.argv[1:2], **({"port": int(sys.argv[2])} if sys.argv[2:] else {}))
"""
"""A server of the tests that dies and sleeps."""


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """No process that a test has started is there after it, and no folder."""
    before = set(Path("/tmp").glob("mcp-*"))
    yield
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
    assert not [command for command in commands if b"mcp" in command]
    assert set(Path("/tmp").glob("mcp-*")) <= before


@pytest.fixture
def own(tmp_path: Path) -> Path:
    require(find_spec("mcp"), "needs mcp: pip install -r tests/optional/environments/requirements-mcp.txt")
    (tmp_path / "mcp_own.py").write_text(OWN)
    return tmp_path / "mcp_own.py"


def list_servers(name: str) -> dict[str, Any]:
    """The servers of an agent. Skips the test where they are not installed."""
    require(
        find_spec("mcp_server_time"),
        "needs mcp-server-time: pip install -r tests/optional/environments/requirements-mcp.txt",
    )
    require(PROGRAM.exists(), "needs the server of files: npm install, as test_mcp.py says")
    files = {"command": ["node", str(PROGRAM), "{folder}"], "tools": ["read_text_file", "write_file"]}
    clock = {"command": ["python", "-m", "mcp_server_time", "--local-timezone", "UTC"], "tools": ["convert_time"]}
    return {"files": {"files": files}, "clock": {"clock": clock}, "diary": {"files": files, "clock": clock}}[name]


def make_agents(*names: str, **keys: Any) -> dict[str, Any]:
    reward = f"{__name__}.reward"
    sizes = {"max_turns": 3, "max_tokens": 60, **keys}
    return {
        name: {"environment": {"kind": "mcp", "servers": list_servers(name)}, "reward": reward, **sizes}
        for name in names
    }


def make_task(name: str, agent: str) -> Task:
    metadata: dict[str, Any] = {"agent": agent, "files": {"note.txt": "the word is sea"} if agent == "files" else {}}
    return Task(name, QUESTIONS[agent], ("done",), metadata=metadata)


def reward(task: Task, answer: str) -> float:
    """Look at the folder where the agent writes, and at the answer elsewhere."""
    files = task.metadata["files"]
    return float(files.get("day.txt") == "yes") if task.metadata["agent"] == "diary" else float(answer in task.answers)


def test_three_environments_train_on_what_the_engine_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = make_agents(*NAMES)
    shown = {
        name: [
            schema.to_openai()
            for schema in read_schemas("x", {key: McpServer(**one) for key, one in list_servers(name).items()})
        ]
        for name in NAMES
    }
    own_words = make_tokenizer([*QUESTIONS.values(), *CALLS.values(), json.dumps(shown), "done the word is sea"])
    renderer = Renderer(own_words)
    examples = []
    for name in NAMES:
        asked = renderer.message("user", QUESTIONS[name])
        examples.append((renderer.render([asked], shown[name]), encode_turn(own_words, CALLS[name])))
    reader = teach(tmp_path / "model", own_words, examples)
    recipe = write_recipe(tmp_path / "recipe.yaml", reader, "agent", agent={"agents": agents})
    write_jsonl(tmp_path / "recipe.jsonl", [make_task(f"{name}-{i}", name) for i in range(2) for name in NAMES])
    steps = train_exactly("agent", recipe, tmp_path / "run", monkeypatch)
    assert all(step["turns"] > 1.3 for step in steps), "the servers were asked"
    assert max(step["reward"] for step in steps) > 0, "the reward has seen what the server wrote"


def reply(prompt: str, chance: Random) -> str:
    """Call what the question needs, call it wrongly, or answer."""
    name = next(name for name, question in QUESTIONS.items() if question in prompt)
    wrong = call("read_text_file", path="/etc/passwd") if name == "files" else call("nothing")
    return chance.choice((CALLS[name], CALLS[name], wrong, "done", "I do not know."))


@pytest.mark.parametrize("backend", ["embedded", "slime"])
def test_a_batch_of_two_environments_is_trained_as_ours_is(
    backend: str,
    case: Case,
    tokenizer: Any,
    request: pytest.FixtureRequest,
) -> None:
    groups = run_batch(backend, case, tokenizer, request)
    assert len({len(one.turns) for group in groups for one in group}) > 1


@pytest.fixture
def case() -> Case:
    changes = ["rollout.tasks_per_step=2", "rollout.group_size=4", "rollout.deadline_s=400", "model.max_model_len=8192"]
    recipe = SPEC.load("tiny", [f"agent.agents={json.dumps(make_agents('files', 'diary', max_tokens=300))}", *changes])
    tasks = [make_task(name, name) for name in ("files", "diary")]
    return Case(SPEC, lambda **rollout: recipe.dump(), lambda count: tasks[:count], [], {}, tasks[0], {}, reply=reply)


async def play(own: Path, words: list[str], **keys: Any) -> Trajectory:
    server = {"command": ["python", str(own)], **keys}
    agent = {"environment": {"kind": "mcp", "servers": {"own": server}}, "reward": f"{__name__}.reward"}
    recipe = SPEC.load("tiny", [f"agent.agents={json.dumps({'x': agent})}", "model.max_model_len=3000"])
    words_known = make_tokenizer([*words, "done"])
    policy, team = script_policy(words_known, words), build(recipe, words_known)
    try:
        runner = Runner(team, Roles({"policy": policy}), concurrency=1, deadline_s=120)
        return await runner.run_one(Task("1", "Go.", ("done",), metadata={"agent": "x"}), Sampling())
    finally:
        await team.close()


async def test_a_server_that_ends_fails_the_rollout_and_a_slow_call_is_told(own: Path) -> None:
    ended = await play(own, [call("add", a=1, b=2), call("die"), "done"])
    assert (ended.status, ended.failure) == ("failed", "environment")
    assert "the MCP server own ended during die" in str(ended.log)
    began = time.monotonic()
    slow = await play(own, [call("sleep"), "done"], reply_s=15)
    assert (slow.status, slow.reward) == ("completed", 1.0)
    assert time.monotonic() - began < 60


async def test_a_rollout_that_is_cancelled_leaves_no_server(own: Path) -> None:
    task = asyncio.create_task(play(own, [call("sleep"), "done"]))
    await asyncio.sleep(12)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def make_box(**server: Any) -> Any:
    options = {"server": server, "timeout_s": 60}
    tool = {"path": "core.environments.mcp.McpTool", "options": options}
    recipe = AGENTFLOW.load("tiny", [f"agentflow.tools={json.dumps({'counter': tool})}"])
    return make_toolbox(recipe.agentflow)


async def test_a_server_over_http_that_dies_ends_the_rollout_and_is_asked_again_when_it_is_back(own: Path) -> None:
    port = find_free_port("127.0.0.1")

    async def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, str(own), "streamable-http", str(port)], stderr=subprocess.DEVNULL)
        async with aiohttp.ClientSession() as http:
            for _ in range(300):
                try:
                    async with http.get(f"http://127.0.0.1:{port}/"):
                        return process
                except aiohttp.ClientError:
                    await asyncio.sleep(0.2)
        raise AssertionError("the server did not start")

    process = await start()
    try:
        (add,) = box = make_box(url=f"http://127.0.0.1:{port}/mcp", tools=["add"], reply_s=20)
        assert (await box.call(add, {"a": 2, "b": 3}, ToolContext())).text == "5"
        process.send_signal(signal.SIGKILL)
        process.wait()
        with pytest.raises(ServerFault, match="the MCP server counter is not ready: ConnectError"):
            await box.call(add, {"a": 2, "b": 3}, ToolContext())
        process = await start()
        assert (await box.call(add, {"a": 4, "b": 3}, ToolContext())).text == "7"
        (die,) = box = make_box(url=f"http://127.0.0.1:{port}/mcp", tools=["die"], reply_s=20)
        with pytest.raises(ServerFault, match="the MCP server counter has ended: Remote"):
            await box.call(die, {}, ToolContext())
    finally:
        process.kill()
        process.wait()
