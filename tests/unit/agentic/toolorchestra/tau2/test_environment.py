"""The adapter's own part, against a process that speaks its protocol (tests/optional/tau2 has the real one)."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentic.toolorchestra.config import EnvironmentSection
from agentic.toolorchestra.environment import EnvironmentFault, Start, make_environment_factory
from agentic.toolorchestra.tau2 import client, worker
from agentic.toolorchestra.tau2.client import Workers
from agentic.toolorchestra.tau2.compat import FORMAT, TRANSFER
from agentic.toolorchestra.tau2.environment import Tau2Environment, Tau2EnvironmentFactory, tau2_tasks
from agentic.toolorchestra.tau2.users import STOP, HangUpUser, ScriptedUser
from core.config import RecipeError
from core.policy.base import PolicyError
from core.policy.openai_chat import CalledTool, ChatReply
from core.types import Task
from tests.unit.agentic.toolorchestra.conftest import Services, Tell, call

FAKE = Path(__file__).with_name("fake_worker.py")
WORLDS = f"{Tau2EnvironmentFactory.__module__}.{Tau2EnvironmentFactory.__name__}"


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setattr(client, "WORKER", FAKE)
    made = Workers()
    yield made
    made.close()


async def opened(workers: Workers, name: str = "hard", **options: Any) -> tuple[Tau2Environment, Start]:
    tasks = {task.metadata["tau2_id"]: task for task in await tau2_tasks(workers, "telecom")}
    environment = Tau2Environment(workers, **{"user": ScriptedUser(tasks[name]), **options})
    return environment, await environment.reset(tasks[name])


async def test_a_conversation(workers: Workers) -> None:
    environment, start = await opened(workers)
    assert (start.policy, start.message, start.complete) == ("Be kind.", "My phone is broken.", True)
    assert [tool.name for tool in start.tools] == ["fix", TRANSFER]
    refused = await environment.call_tool("break", {})
    assert (refused.error, refused.done) == (True, False)
    assert (await environment.call_tool("fix", {})).text == "fixed"
    heard = await environment.user_turn("It is fixed.")
    assert (heard.text, heard.done) == (STOP, True)
    assert await environment.evaluate() == 1.0
    with pytest.raises(EnvironmentFault, match="has ended"):
        await environment.call_tool("fix", {})
    await environment.close()


@pytest.mark.parametrize(("silent", "reason"), [(False, "max_steps"), (True, "agent_error")])
async def test_what_ends_too_early_scores_0(workers: Workers, silent: bool, reason: str) -> None:
    environment, _ = await opened(workers)
    if silent:
        assert (await environment.user_turn("  ")).done
    assert await environment.evaluate() == 0.0
    assert environment.simulation is not None
    assert environment.simulation["termination_reason"] == reason
    await environment.close()


async def test_a_process_that_dies_is_a_fault_and_the_next_conversation_gets_a_new_one(workers: Workers) -> None:
    environment, _ = await opened(workers)
    crash = Task("t", "", (), metadata={"domain": "telecom", "tau2_id": "crash", "solo": False})
    second = Tau2Environment(workers, user=HangUpUser(crash))
    for attempt in (second.reset(crash), environment.call_tool("fix", {})):
        with pytest.raises(EnvironmentFault, match="exit code 3") as caught:
            await attempt
        assert caught.value.kind == "env_process"
    await environment.close()
    await second.close()
    again, _ = await opened(workers, "easy")
    assert (await again.user_turn("Goodbye.")).done
    assert await again.evaluate() == 1.0
    await again.close()


async def test_closing_in_the_middle_leaves_nothing_behind(workers: Workers) -> None:
    environment, _ = await opened(workers)
    await environment.close()
    assert workers.pick().load == 0


async def test_faults_name_who_is_to_blame(workers: Workers) -> None:
    task = (await tau2_tasks(workers, "telecom"))[0]
    with pytest.raises(EnvironmentFault, match="metadata has no 'domain'"):
        await Tau2Environment(workers, user=HangUpUser(task)).reset(Task("t", "", ()))
    with pytest.raises(EnvironmentFault, match="nobody plays the user"):
        await Tau2Environment(workers).reset(task)
    with pytest.raises(EnvironmentFault, match="reset comes first"):
        await Tau2Environment(workers, user=HangUpUser(task)).user_turn("Hi")


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (ChatReply("It is broken."), None),
        (ChatReply("<think>hm</think>It is broken."), None),
        (ChatReply("hm\n</think>It is broken."), None),
        (ChatReply("It is broken, but", cut=True), "cut at its limit"),
        (ChatReply("", (CalledTool("fix", "{"),)), "malformed call"),
        (ChatReply("<tool_call>{</tool_call>"), "not a usable turn"),
        (PolicyError("timeout", "no reply"), "PolicyError: no reply"),
    ],
)
async def test_a_model_plays_the_user(workers: Workers, reply: ChatReply | PolicyError, fault: str | None) -> None:
    factory = Tau2EnvironmentFactory(user="simulator")
    factory.workers = workers
    asked: list[str] = []

    async def ask(name: str, messages: Sequence[Any], tools: Sequence[Any]) -> ChatReply:
        asked.append(name)
        if isinstance(reply, PolicyError):
            raise reply
        return reply

    task = (await tau2_tasks(workers, "telecom"))[0]
    environment = factory.open(task, ask)
    if fault is None:
        assert (await environment.reset(task)).message == "It is broken."
    else:
        with pytest.raises(EnvironmentFault, match="user gave no reply") as caught:
            await environment.reset(task)
        assert caught.value.kind == "env_user"
    assert asked == ["simulator"]
    await environment.close()


async def test_without_tau2_the_fault_says_how_to_get_it() -> None:
    workers = Workers(sys.executable)
    told = r"python\S* has no tau2-bench; .*benchmarks/tau2/README\.md.*--tau2-python"
    with pytest.raises(EnvironmentFault, match=told):
        await workers.pick().call("about")
    workers.close()


@pytest.mark.parametrize("place", ["python", "data"])
def test_a_wrong_place_of_tau2_is_a_fault_and_a_run_is_refused_at_its_start(tmp_path: Path, place: str) -> None:
    places = {place: str(tmp_path / "absent")}
    with pytest.raises(EnvironmentFault, match=rf"absent.*--tau2-{place}.*environment.options.{place}") as caught:
        Workers(**places).pick()
    assert caught.value.kind == "env_process"
    with pytest.raises(RecipeError, match=f"absent.*options.{place}.*toolorchestra.environment=null"):
        make_environment_factory(EnvironmentSection(path=WORLDS, options=places))


@pytest.mark.parametrize(
    ("summary", "accepted"),
    [("tau-bench: Benchmarking tool-agent-user interaction", True), ("Magnetic relaxation", False), (None, False)],
)
def test_the_chemistry_package_of_that_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, summary: str | None, accepted: bool
) -> None:
    monkeypatch.setattr(importlib.metadata, "metadata", lambda name: {"Summary": summary})
    if accepted:
        worker.check_package()
    else:
        with pytest.raises(ImportError, match=r"not tau2-bench but .*pip uninstall tau2"):
            worker.check_package()


async def test_the_rewriting_is_the_orchestrators_alone(
    tell: Tell, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "WORKER", FAKE)
    services.scripts["clever"] = lambda messages: {"tool_calls": [{"function": {"name": "fix", "arguments": "{}"}}]}
    environment = {"path": WORLDS, "options": {"user": "scripted", "compat": True}}
    metadata = {"category": "func_call", "domain": "telecom", "tau2_id": "hard", "solo": False, "criteria": None}
    task = Task("t", "My phone is broken.", (), metadata=metadata)
    story = await tell([call("call_expert", expert="expert-1"), "It is fixed."], task, environment=environment)
    assert story.metrics["correct"] == 1
    assert FORMAT in story.prompts[0]
    assert TRANSFER not in story.prompts[0]
    ((_, asked),) = services.asked
    assert asked["messages"][0] == {"role": "system", "content": "Be kind."}
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["fix", TRANSFER]


async def test_the_scripted_user_does_its_part_and_hangs_up() -> None:
    actions = [
        {"requestor": "assistant", "name": "fix", "arguments": {}},
        {"requestor": "user", "name": "restart", "arguments": {"hard": True}},
    ]
    user = ScriptedUser(Task("t", "It is broken.", (), metadata={"criteria": {"actions": actions}}))
    said: list[dict[str, Any]] = [{"role": "user", "content": "Hi!"}]
    assert await user(said, []) == {"content": "It is broken."}
    said += [{"role": "assistant", "content": "It is broken."}, {"role": "user", "content": "Restart it."}]
    called = await user(said, [])
    assert [(c["name"], c["arguments"]) for c in called["tool_calls"]] == [("restart", {"hard": True})]
    said += [{"role": "assistant", **called}, {"role": "tool", "content": "ok"}]
    assert "ok" in (await user(said, []))["content"]
    said += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "Anything else?"}]
    assert await user(said, []) == {"content": STOP}
