"""An agent is a method: a function or a program that asks the gateway, with a reward for its answer."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import aiohttp
import numpy as np
import pytest

from core.gateway.agent import MAX_ARGUMENT, AgentMethod, Command, Endpoint, Outcome, find_program
from core.gateway.session import SessionSettings
from core.policy.base import PolicyError, Roles
from core.rollout.method import RolloutError
from core.rollout.rows import rows_from_groups
from core.rollout.runner import Runner
from core.types import Sampling, Task, Trajectory
from tests import kit

from .model import RandomModel, check_contexts
from .templates import make_tokenizer

TASKS = [Task(f"t{i}", f"question {i}", (str(i),)) for i in range(3)]

PROGRAM = """
import json, os, sys, urllib.request

def ask(messages):
    body = json.dumps({"model": os.environ["MODEL"], "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]

messages = [{"role": "user", "content": sys.argv[1]}]
for _ in range(2):
    messages += [ask(messages), {"role": "user", "content": "go on"}]
print("some log")
print(sys.argv[1].split()[-1] if "wrong" not in sys.argv else "x")
"""


def make_model() -> RandomModel:
    return RandomModel(make_tokenizer("qwen3"), "hermes", calling=0, seed=1)


async def ask(endpoint: Endpoint, messages: Sequence[Any], **fields: Any) -> Any:
    """Return the answer to one request. Raises ClientResponseError if it was refused."""
    body = {"model": endpoint.model, "messages": messages, **fields}
    url = f"{endpoint.openai_url}/chat/completions"
    async with aiohttp.ClientSession(raise_for_status=True) as http, http.post(url, json=body) as response:
        return (await response.json())["choices"][0]["message"]


async def talk(task: Task, endpoint: Endpoint) -> str:
    """Ask twice, then answer right if the task's number is even."""
    messages = [{"role": "user", "content": task.question}]
    for _ in range(2):
        messages += [await ask(endpoint, messages), {"role": "user", "content": "go on"}]
    return task.answers[0] if int(task.answers[0]) % 2 == 0 else "no"


def grade(task: Task, answer: str) -> float:
    return float(answer in task.answers)


def make_method(run, model: RandomModel, **settings) -> AgentMethod:
    return AgentMethod(run, grade, model.tokenizer, SessionSettings(**{"max_context": 10_000, **settings}))


async def run_each(method: AgentMethod, model: RandomModel, tasks: Sequence[Task]) -> list[Trajectory]:
    """Run each task once, one after the other, and close the method."""
    runner = Runner(method, Roles({"policy": model.policy}), concurrency=1, deadline_s=60)
    done = [await runner.run_one(task, Sampling()) for task in tasks]
    await method.close()
    return done


async def run_one(run: Any, task: Task = TASKS[0], model: RandomModel | None = None, **settings: Any) -> Trajectory:
    """Run an agent once, and close its method."""
    model = model or make_model()
    [done] = await run_each(make_method(run, model, **settings), model, [task])
    return done


@pytest.mark.parametrize("run", [talk, Command((sys.executable, "-c", PROGRAM))], ids=["function", "command"])
async def test_rollouts_of_an_agent_have_rewards_and_exact_rows(run):
    model = make_model()
    method = make_method(run, model)
    runner = Runner(method, Roles({"policy": model.policy}), concurrency=8, deadline_s=60)
    try:
        groups = await runner.run_groups(TASKS, 2, Sampling(), seed=0)
    finally:
        await method.close()
    rewards = [[trajectory.reward for trajectory in group] for group in groups]
    assert rewards == ([[1, 1], [0, 0], [1, 1]] if run is talk else [[1, 1]] * 3)
    assert all(trajectory.metrics["verbatim"] == 1 for group in groups for trajectory in group)
    rows = rows_from_groups(groups, std_normalization=False, split_advantage=False, rows="segment")
    assert [row.rollout_id for row in rows] == list(range(6))
    check_contexts(model.policy.calls, [(row.tokens, row.loss_mask) for row in rows])
    sampled = sum(len(turn.completion.token_ids) for group in groups for t in group for turn in t.turns)
    assert sum(row.trained_tokens for row in rows) == sampled > 0


async def test_the_calls_of_each_offered_tool_are_counted():
    """A model that is offered tools and calls none has zeros, which is how a run notices it."""
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("search", "look_up")]

    async def offer(task: Task, endpoint: Endpoint) -> str:
        await ask(endpoint, [{"role": "user", "content": "?"}], tools=tools)
        return ""

    trajectory = await run_one(offer)
    assert [trajectory.metrics.get(f"calls_{name}") for name in ("search", "look_up")] == [0.0, 0.0]


async def test_an_agent_that_had_its_turns_is_truncated_and_graded():
    trajectory = await run_one(talk, max_turns=1)
    assert (trajectory.status, trajectory.reward, len(trajectory.turns)) == ("truncated", 0.0, 1)


@pytest.mark.parametrize("limit", [{"max_turns": 1}, {"max_context": 40}])
@pytest.mark.parametrize("returned", ["", None, ("", 1.0)])
async def test_an_agent_that_catches_its_limit_is_truncated_whatever_it_returns(returned: Any, limit: dict[str, int]):
    async def give_up(task: Task, endpoint: Endpoint) -> Any:
        try:
            return await talk(task, endpoint)
        except Exception:
            return returned

    trajectory = await run_one(give_up, **limit)
    assert (trajectory.failure, trajectory.status, trajectory.reward) == (None, "truncated", 0.0)
    assert len(trajectory.turns) == 1


@pytest.mark.parametrize("limits", [{"max_new_tokens": 2}, {"room": 2}])
async def test_an_agent_whose_last_answer_was_cut_is_truncated(limits: dict[str, int]):
    model = make_model()

    async def run(context: int, **options: int) -> Trajectory:
        method = AgentMethod(talk, grade, model.tokenizer, SessionSettings(max_context=context), **options)
        return (await run_each(method, model, TASKS[:1]))[0]

    if room := limits.pop("room", None):  # what the context leaves behind the last prompt
        whole = await run(10_000)
        limits = {"context": len(whole.turns[0].prompt_ids) + room}
    trajectory = await run(**{"context": 10_000, **limits})
    assert trajectory.turns[-1].completion.finish_reason == "length"
    assert trajectory.status == "truncated"


async def test_an_agent_that_fails_is_counted_with_its_error():
    async def fail(task: Task, endpoint: Endpoint) -> str:
        raise KeyError("no such tool")

    for run, message in (
        (fail, "KeyError: 'no such tool'"),
        (Command((sys.executable, "-c", "import sys; print('the reason'); sys.exit(3)")), "status 3: the reason"),
    ):
        trajectory = await run_one(run)
        assert (trajectory.status, trajectory.failure) == ("failed", "agent")
        assert message in trajectory.log["error"]


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        ([PolicyError("unavailable", "no engine")], "unavailable"),
        (["fine", PolicyError("engine", "it broke")], "engine"),
        ([PolicyError("engine", "it broke"), "fine"], None),
        ([PolicyError("too_long", "of context"), "fine"], None),
    ],
)
@pytest.mark.parametrize("ends", ["answers", "raises"])
async def test_what_an_agent_makes_of_a_policy_that_failed_is_not_trained(says, kind, ends):
    """Its last request counts: what it asked again, and what it shortened in a full context, was answered."""

    async def go_on(task: Task, endpoint: Endpoint) -> str:
        for _ in says:
            with suppress(aiohttp.ClientResponseError):
                await ask(endpoint, [{"role": "user", "content": "?"}])
        if ends == "raises":
            raise OSError("no disk")
        return "sorry"

    model = make_model()
    model.policy = kit.script_policy(model.tokenizer, says)
    trajectory = await run_one(go_on, model=model)
    assert trajectory.failure == (kind or (None if ends == "answers" else "agent"))
    assert trajectory.status == ("completed" if trajectory.failure is None else "failed")


@pytest.mark.parametrize(("part", "told"), [(None, "take `endpoint`"), ("image_url", "'refused_no_image': 1")])
async def test_an_answer_for_which_nobody_asked_the_policy_is_not_rewarded(part: str | None, told: str):
    """Such as that of an agent whose client asks another server, or whose one request was refused."""

    async def know(task: Task, endpoint: Endpoint) -> str:
        if part is not None:
            with suppress(aiohttp.ClientResponseError):
                await ask(endpoint, [{"role": "user", "content": [{"type": part}]}])
        return task.answers[0]

    trajectory = await run_one(know)
    assert (trajectory.failure, trajectory.reward) == ("unasked", None)
    assert told in trajectory.log["error"]


async def test_a_first_prompt_that_is_too_long_is_a_limit_whatever_its_record_holds():
    task = Task("t", "question 0", ("0",), earlier_messages=({"role": "system", "content": "Be brief."},))
    trajectory = await run_one(talk, task, max_context=2)
    assert (trajectory.status, trajectory.failure, trajectory.reward) == ("truncated", None, 0.0)


async def test_an_agent_that_keeps_the_thread_of_all_is_told_of(monkeypatch, caplog):
    """A synchronous client waits there for a gateway that cannot answer: ten minutes, and again."""
    monkeypatch.setattr("core.gateway.agent.BLOCKED_S", 0.2)

    async def wait(task: Task, endpoint: Endpoint) -> str:
        time.sleep(1.0)
        return await talk(task, endpoint)

    model = make_model()
    await run_each(make_method(wait, model), model, TASKS[:2])
    (said,) = caplog.messages
    assert "wait keeps the thread of all rollouts" in said


async def test_an_agent_that_finishes_its_session_keeps_its_turns():
    """As one does that speaks ACP, and tells so how its requests belong together."""

    async def finish(task: Task, endpoint: Endpoint) -> str:
        answer = await talk(task, endpoint)
        async with aiohttp.ClientSession(raise_for_status=True) as http:
            await http.post(f"{endpoint.url}/finish", json={})
        return answer

    trajectory = await run_one(finish)
    assert (trajectory.failure, trajectory.reward, len(trajectory.turns)) == (None, 1.0, 2)


async def test_an_agent_may_know_its_own_reward_which_a_reward_function_replaces():
    async def play(task: Task, endpoint: Endpoint) -> Outcome:
        answer = await talk(task, endpoint)
        return Outcome(answer, reward=0.25, metrics={"score": 3.0}, truncated=task.task_id == "t1")

    model = make_model()
    graded = make_method(play, model)
    own = AgentMethod(play, None, model.tokenizer, graded.gateway.settings)
    done = await run_each(own, model, TASKS[:2])
    ends = [(t.reward, t.status, t.metrics["environment_score"]) for t in done]
    assert ends == [(0.25, "completed", 3.0), (0.25, "truncated", 3.0)]
    assert [t.reward for t in await run_each(graded, model, TASKS[:2])] == [1.0, 0.0]


async def test_a_failure_that_an_agent_names_keeps_its_name_and_a_reward_is_a_number():
    class Environment:
        closed = False

        async def __call__(self, task: Task, endpoint: Endpoint) -> Outcome:
            if task.task_id == "t0":
                raise RolloutError("environment", "it is gone")
            if task.task_id == "t1":
                return Outcome("", metrics={"score": None})  # in the average it would end the run
            return Outcome("", reward=float("nan"))

        async def close(self) -> None:
            self.closed = True

    model, environment = make_model(), Environment()
    method = make_method(environment, model)
    gone, no_number, nan = await run_each(method, model, TASKS)
    assert (gone.failure, no_number.failure, nan.failure) == ("environment", "agent", "agent")
    assert "reward is nan, which is no finite number" in nan.log["error"]
    assert "score is None, which is no finite number" in no_number.log["error"]
    assert Outcome("", reward=np.float32(0.5), metrics={"solved": np.bool_(True)}).reward == 0.5
    assert environment.closed


async def test_a_question_of_any_length_reaches_a_program_by_file():
    model = make_model()
    longest = "l " * (MAX_ARGUMENT // 2) + "7"
    questions = {"long": "long " * 40_000 + "7", "null": "a\0b 7", "short": "-x 7", "longest": longest}
    tasks = [Task(name, question, ("7",)) for name, question in questions.items()]
    read = f"import sys; sys.argv[1] = open(sys.argv[1]).read()\n{PROGRAM}"
    by_name = ((PROGRAM,), ["failed", "failed", "completed", "completed"])
    for arguments, ended in (((read, "{question_file}"), ["completed"] * 4), by_name):
        method = make_method(Command((sys.executable, "-c", *arguments)), model, max_context=400_000)
        done = await run_each(method, model, tasks)
        assert [trajectory.status for trajectory in done] == ended
        rewards = [trajectory.reward for trajectory in done if trajectory.status == "completed"]
        assert rewards == [1] * ended.count("completed")
    assert "write {question_file} into the command" in done[0].log["error"]
    assert "of 200001 bytes" in done[0].log["error"]


async def test_the_last_line_of_a_command_is_whole_and_waits_for_nobody_that_it_started(monkeypatch):
    async def ask(code: str) -> str:
        return await Command((sys.executable, "-c", code))(TASKS[0], Endpoint("http://x", "k"))

    assert await ask("print('first'); print('a\\u2028b' + 'c' * 50_000)") == "a\u2028b" + "c" * 50_000
    monkeypatch.setattr("core.gateway.agent.LEFT_OPEN_S", 0.2)
    leave = "import subprocess; subprocess.Popen(['sleep', '20'], start_new_session=True); print(42)"
    async with asyncio.timeout(10):
        assert await ask(leave) == "42"
    monkeypatch.setattr("core.gateway.agent.KEPT_OUTPUT", 100)
    with pytest.raises(RuntimeError, match="is longer than 100 bytes"):
        await ask("print('x' * 200)")


def test_a_program_that_is_a_link_stays_one(tmp_path, monkeypatch):
    """The python of an environment finds its packages by where the link lies."""
    python = tmp_path / "env" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert find_program(["env/python", "-c", "env"]) == [str(python), "-c", "env"]


async def test_a_command_that_is_cancelled_leaves_no_process(tmp_path):
    script = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    run = asyncio.create_task(Command((sys.executable, "-c", script))(TASKS[0], Endpoint("http://x", "k")))
    await kit.until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    pid = int((tmp_path / "pid").read_text())
    await kit.until(lambda: not kit.is_running(pid))
