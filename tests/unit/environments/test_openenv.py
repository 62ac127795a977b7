"""A server of OpenEnv is played by text or by tools; its rewards add up, and its faults have names."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from pydantic import ValidationError

from core.environments.openenv import OpenEnvEntry, OpenEnvEpisode
from core.gateway import AgentMethod, SessionSettings
from core.policy.base import Roles
from core.rollout.method import RolloutError
from core.rollout.rows import rows_from_groups
from core.rollout.runner import Runner
from core.types import Sampling, Task, Trajectory
from core.worlds import TOOL_TEMPLATE
from tests.kit import call, script_policy, serve_app, train_tokenizer
from tests.unit.environments.fake_openenv import SEEN, make_app

SERVER = Path(__file__).with_name("fake_openenv.py")
COMMAND = (sys.executable, str(SERVER), "{port}")
TASK = Task("t", "0 of 5", (), metadata={"index": 3})
Play = Callable[..., Any]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer("count the numbers of a tool call " * 4, 300, template=TOOL_TEMPLATE)


@pytest.fixture
def app() -> Any:
    return make_app()


@pytest.fixture
def url(app: Any) -> Iterator[str]:
    with serve_app(app) as url:
        yield url


@pytest.fixture
async def play(tokenizer: Any) -> AsyncIterator[Play]:
    """Plays rollouts of a task with an entry and a policy that says `words`."""
    methods = []

    async def play(words: list[Any], task: Task = TASK, count: int = 1, **keys: Any) -> list[Trajectory]:
        entry = OpenEnvEntry.model_validate({"kind": "openenv", "action": "say", "show": ["text"], **keys})
        settings = SessionSettings(max_context=4096, max_turns=4)
        method = AgentMethod(entry.open("agent.agents.x.environment", 4), None, tokenizer, settings)
        methods.append(method)
        runner = Runner(method, Roles({"policy": script_policy(tokenizer, words)}), concurrency=count, deadline_s=60)
        return [*await asyncio.gather(*[runner.run_one(task, Sampling()) for _ in range(count)])]

    yield play
    for method in methods:
        await method.close()


async def test_a_reply_is_an_action_and_the_rewards_of_the_steps_add_up(
    play: Play, url: str, app: Any, tokenizer: Any
) -> None:
    reset = {"seed": "{index}", "level": 2, "options": {"names": ["task-{index}"]}}
    [done] = await play(["2", "two", "3"], url=url, system="Count.", reset=reset)
    assert app[SEEN].resets == [{"seed": 3, "level": 2, "options": {"names": ["task-3"]}}]
    assert (done.status, done.reward, done.log["answer"]) == ("completed", 1.0, "3")
    [row] = rows_from_groups([[done]], std_normalization=False, split_advantage=False, rows="segment")
    assert row.trained_tokens == sum(len(turn.completion.token_ids) for turn in done.turns)
    shown = tokenizer.decode(row.tokens)
    assert [part in shown for part in ("Count.", "0 of 5", "2 of 5", '{"error": ["no number"]}', "hidden")] == [
        True, True, True, True, False,
    ]  # fmt: skip


async def test_the_policy_calls_the_tools_that_the_environment_lists(play: Play, url: str, tokenizer: Any) -> None:
    [done] = await play([call("add", number=4), "enough"], url=url, action=None)
    assert (done.status, done.reward, done.log["answer"]) == ("completed", 0.5, "enough")
    assert "now 4\n[image]" in tokenizer.decode(done.turns[1].prompt_ids)
    [ended] = await play([call("add", number=9)], url=url, action=None)
    assert (ended.status, ended.reward, len(ended.turns)) == ("completed", 0.5, 1)


async def test_a_limit_ends_an_episode_with_what_it_earned(play: Play, url: str) -> None:
    [done] = await play(["1"], url=url, task=Task("t", "0 of 9", (), metadata={"index": 7}))
    assert (done.status, done.reward, len(done.turns)) == ("truncated", 2.0, 4)


async def test_an_episode_that_ends_without_any_reward_has_failed(play: Play, url: str) -> None:
    [done] = await play(["99"], url=url)
    assert (done.status, done.failure) == ("failed", "bad_reward")


async def test_tools_that_never_earn_anything_fail_the_rollout_and_who_calls_none_has_earned_nothing(
    play: Play, url: str
) -> None:
    far = Task("t", "0 of 202", (), metadata={"index": 200})
    [done] = await play([call("add", number=99), "enough"], far, url=url, action=None)
    assert (done.status, done.failure) == ("failed", "bad_reward")
    [done] = await play(["enough"], far, url=url, action=None)
    assert (done.status, done.reward) == ("completed", 0.0)


async def test_where_each_reset_begins_anew_the_policy_reads_what_this_one_begins_with(
    play: Play, url: str, tokenizer: Any
) -> None:
    [done] = await play(["5"], Task("t", "0 of 99", (), metadata={"index": 3, "key": None}), url=url)
    assert "0 of 5" in (shown := tokenizer.decode(done.turns[0].prompt_ids))
    assert "99" not in shown


async def test_a_server_plays_no_more_rollouts_at_once_than_the_recipe_says(
    play: Play, url: str, app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(await play(["5"], url=url, count=6, sessions=2)) == 6
    assert app[SEEN].most == 2
    assert sum("sessions=2, so rollouts wait for one another" in message for message in caplog.messages) == 1


@pytest.mark.parametrize(
    ("word", "told"),
    [("break", "it broke"), ("hang", "no answer in 0.5 s"), ("die", "closed")],
)
async def test_an_environment_that_fails_hangs_or_dies_fails_the_rollout_by_name(
    play: Play, word: str, told: str
) -> None:
    [failed] = await play([word], command=COMMAND, reply_s=0.5)
    assert (failed.status, failed.failure) == ("failed", "environment")
    assert told in str(failed.log)


async def test_a_server_that_cannot_start_is_told_with_the_end_of_its_log(play: Play) -> None:
    [failed] = await play(["1"], command=[sys.executable, "-c", "raise SystemExit('no such module')"])
    assert failed.failure == "environment"
    assert "no such module" in str(failed.log)


async def test_a_started_server_ends_with_the_method() -> None:
    environment = OpenEnvEntry(kind="openenv", command=COMMAND, action="say", show=("text",)).open("x", 4)
    assert (await environment.read_task(1))[0] == "0 of 3"
    assert environment._url is not None
    port = int(environment._url.result().rpartition(":")[2])
    await environment.close()
    with pytest.raises(OSError, match="onnect"):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_task_that_begins_otherwise_than_its_record_says_is_refused(play: Play, url: str) -> None:
    environment = OpenEnvEntry(kind="openenv", url=url, action="say", show=("text",)).open("x", 4)
    question, key = await environment.read_task(3)
    assert question == TASK.question
    about = {"index": 3, "key": key}
    [done] = await play(["5"], Task("t", question, (), metadata=about), url=url)
    assert done.status == "completed"
    [failed] = await play(["5"], Task("t", question, (), metadata=about | {"index": 4}), url=url)
    assert failed.failure == "bad_task"
    assert "data environment" in str(failed.log)
    [failed] = await play(["5"], Task("t", question, ()), url=url)
    assert failed.failure == "bad_task"


async def test_a_field_that_no_observation_has_is_named(url: str) -> None:
    environment = OpenEnvEntry(kind="openenv", url=url, show=("texts",)).open("x", 4)
    with pytest.raises(RolloutError, match=r"no 'texts' in an observation of \['error', 'hidden', 'result', 'text'\]"):
        await environment.read_task(1)


async def test_what_a_tool_tells_without_a_result_is_shown_as_any_observation() -> None:
    entry = OpenEnvEntry(kind="openenv", url="http://127.0.0.1:1", show=("text",))
    socket: Any = AsyncMock()
    socket.receive_str.return_value = '{"data": {"observation": {"text": "now 3", "hidden": 7}}}'
    assert await OpenEnvEpisode(entry, socket).call("add", number=1) == "now 3"


@pytest.mark.parametrize("keys", [{}, {"url": "http://127.0.0.1:1", "command": ["x"]}, {"url": "x", "actions": "say"}])
def test_a_recipe_names_one_server_and_known_keys(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        OpenEnvEntry.model_validate({"kind": "openenv", **keys})
