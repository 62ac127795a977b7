"""Agents in a recipe: several in one run, functions and programs, what they may ask, rewards, and errors with a fix."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agentic.agent.rewards import token_f1
from agentic.agent.rollout import SPEC, build
from core.config import RecipeError
from core.data import read_tasks, write_jsonl
from core.data.files import DataError
from core.environments import run_tool_loop
from core.gateway import Endpoint
from core.policy.base import Policy, Roles
from core.rollout.runner import Runner
from core.types import Sampling, Task, Trajectory
from tests.kit import call, script_policy

HERE = __name__
LONG = "model.max_model_len=2000"
PROGRAM = """
import json, os, sys, urllib.request

body = json.dumps({"model": "any", "messages": [{"role": "user", "content": sys.argv[-1]}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"], os.environ.get("WORLD"))
"""


async def ask(endpoint: Endpoint, model: str, text: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    async with (
        aiohttp.ClientSession(headers=headers, raise_for_status=True) as http,
        http.post(f"{endpoint.openai_url}/chat/completions", json=body) as response,
    ):
        return str((await response.json())["choices"][0]["message"]["content"])


async def repeat(task: Task, endpoint: Endpoint) -> str:
    return await ask(endpoint, endpoint.model, task.question)


async def with_title(task: Task, endpoint: Endpoint) -> str:
    """Ask for a title, then the policy, then the judge."""
    words = [await ask(endpoint, model, task.question) for model in ("small-2", "large", "frozen:judge")]
    return " ".join(words)


def not_asynchronous(task: Task, endpoint: Endpoint) -> str:
    return ""


async def zero(task: Task, answer: str) -> float:
    return 0.0


def load(agents: dict[str, dict[str, Any]], *overrides: str) -> Any:
    return SPEC.load("tiny", [f"agent.agents={json.dumps(agents)}", *overrides])


async def play(recipe: Any, tokenizer: Any, tasks: Sequence[Task], **policies: Policy) -> list[Trajectory]:
    team = build(recipe, tokenizer)
    try:
        runner = Runner(team, Roles(policies), concurrency=4, deadline_s=30)
        return [await runner.run_one(task, Sampling()) for task in tasks]
    finally:
        await team.close()


async def test_each_task_goes_to_the_agent_that_it_names_and_a_program_gets_the_variables_that_it_inherits(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "agent.py"
    program.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD", "tiny")
    agents = {
        "function": {"run": f"{HERE}.repeat", "reward": "agentic.agent.rewards.exact"},
        "program": {"command": ["python", str(program), "--fast"], "reward": f"{HERE}.zero"},
        "heir": {"command": ["python", "agent.py"], "inherit": ["WORLD"], "reward": f"{HERE}.zero"},
    }
    tasks = [Task("1", "q", ("lamp",), metadata={"agent": name}) for name in (*agents, "nobody")]
    done = await play(load(agents), tokenizer, tasks, policy=script_policy(tokenizer, [" lamp"]))
    assert [(t.log.get("answer"), t.reward, t.failure) for t in done] == [
        ("lamp", 1.0, None), ("lamp None", 0.0, None), ("lamp tiny", 0.0, None), (None, None, "bad_task"),
    ]  # fmt: skip
    assert [len(t.turns) for t in done] == [1, 1, 1, 0]


async def test_the_name_of_a_model_says_who_answers_and_what_is_trained(tokenizer: Any) -> None:
    agent = {"run": f"{HERE}.with_title", "reward": f"{HERE}.zero", "model_roles": {"small-*": "frozen:policy"}}
    policy, judge = (script_policy(tokenizer, [name]) for name in ("policy", "judge"))
    recipe = load({"a": agent})
    (done,) = await play(recipe, tokenizer, [Task("1", "q", ("x",))], policy=policy, judge=judge)
    assert done.log["answer"] == "policy policy judge"
    assert [(turn.role, turn.trained) for turn in done.turns] == [("policy", False), ("policy", True), ("judge", False)]


@pytest.mark.parametrize(
    ("metadata", "agents", "says"),
    [
        ({"agent": "nobody"}, ("a",), r"tasks.jsonl:2: field 'metadata.agent': is 'nobody', .* Fix: name one of a"),
        ({}, ("a", "b"), r"tasks.jsonl:2: field 'metadata.agent': is missing, .* Fix: name one of a, b"),
    ],
)
def test_a_record_without_a_known_agent_is_named(
    metadata: dict[str, str], agents: Sequence[str], says: str, tmp_path: Path
) -> None:
    first = Task("1", "q", ("x",), metadata={"agent": "a"})
    write_jsonl(tmp_path / "tasks.jsonl", [first, Task("2", "q", ("x",), metadata=metadata)])
    entry = {"run": f"{HERE}.repeat", "reward": f"{HERE}.zero"}
    recipe = load(dict.fromkeys(agents, entry))
    with pytest.raises(DataError, match=says):
        read_tasks(tmp_path / "tasks.jsonl", **SPEC.reading_options(recipe))


ENVIRONMENT = {"kind": "openenv", "url": "http://127.0.0.1:1"}


def test_an_environment_needs_no_reward_but_a_task_of_its_own() -> None:
    check = SPEC.reading_options(load({"a": {"environment": ENVIRONMENT}}))["check"]
    assert check(Task("1", "q", (), metadata={"index": 0})) is None
    assert check(Task("1", "q", ()))[0] == "metadata.index"
    ours = load({"a": {"environment": ENVIRONMENT, "reward": "agentic.agent.rewards.exact"}})
    assert SPEC.reading_options(ours)["check"](Task("1", "q", (), metadata={"index": 0}))[0] == "answers"


@pytest.mark.parametrize(
    ("entry", "overrides", "says"),
    [
        ({}, ["algorithm.rows=turn"], "algorithm.rows is turn, .* set algorithm.rows=segment"),
        ({}, ["model.max_model_len=null"], "model.max_model_len is missing"),
        ({"command": ["x"]}, [], "agent.agents.a: needs either `run`"),
        ({"run": None}, [], "agent.agents.a: needs either `run`"),
        ({"environment": ENVIRONMENT}, [], "agent.agents.a: needs either `run`"),
        (
            {"run": None, "environment": ENVIRONMENT | {"actions": "x"}},
            [],
            "environment.openenv.actions: unknown key; did you mean .*action\\?",
        ),
        ({"run": None, "environment": {"kind": "gym"}}, [], "agent.agents.a.environment: .*'verifiers', 'openenv'"),
        (
            {"run": None, "environment": ENVIRONMENT},
            [f"reward={HERE}.zero"],
            "agents.a.reward rewards an agent of the kind openenv: it alone sees with what an episode began; name it",
        ),
        ({"max_turn": 3}, [], "agent.agents.a.max_turn: unknown key; did you mean agent.agents.a.max_turns?"),
        ({"run": f"{HERE}.missing"}, [], "agent.agents.a.run: .*missing.*write package.module.function"),
        ({"run": "no_such_module.run"}, [], "agent.agents.a.run: .*no_such_module.*PYTHONPATH"),
        ({"reward": "reward"}, [], "agent.agents.a.reward: .*write package.module.function"),
        ({"run": f"{HERE}.not_asynchronous"}, [], "agent.agents.a.run: .* must be `async def`"),
    ],
)
def test_a_recipe_that_cannot_be_run_says_what_to_change(
    entry: dict[str, Any], overrides: Sequence[str], says: str, tokenizer: Any
) -> None:
    agent = {"run": f"{HERE}.repeat", "reward": f"{HERE}.zero"} | entry
    with pytest.raises(RecipeError, match=says):
        build(load({"a": agent}, *overrides), tokenizer)


async def send_all(task: Task, endpoint: Endpoint) -> str:
    return await run_tool_loop(endpoint, task.messages, [], "Ours.")


TURNS = ({"role": "system", "content": "Be  brief."}, {"role": "user", "content": "Hi."})


async def test_messages_before_the_question_are_sent_or_the_rollout_fails(tokenizer: Any) -> None:
    task = Task("1", "Who?", ("Bob",), earlier_messages=TURNS)
    for function in ("send_all", "repeat"):
        recipe = load({"a": {"run": f"{HERE}.{function}", "reward": f"{HERE}.zero"}}, LONG)
        (done,) = await play(recipe, tokenizer, [task], policy=script_policy(tokenizer, ["Bob"]))
        if function == "repeat":
            assert (done.failure, done.reward) == ("messages_unsent", None)
            assert "message 0 (system) of its record; send task.messages" in done.log["error"]
        else:
            assert done.log["answer"] == "Bob"
            assert "system\nOurs.\n\nBe  brief.<|im_end|>" in tokenizer.decode(done.turns[0].prompt_ids)
    command = load({"a": {"command": ["x"], "run": None, "reward": f"{HERE}.zero"}})
    assert SPEC.reading_options(command)["check"](task)[0] == "messages"
    read = Task("1", "Who?", ("Bob",), context="Bob is the owner.")
    servers = {"kind": "mcp", "servers": {"disk": {"url": "http://127.0.0.1:1"}}}
    ours = {"run": "agentic.agent.math_agent.run"}
    for unseeing in ({"command": ["x"]}, {"environment": ENVIRONMENT}, {"environment": servers}, ours):
        refusing = SPEC.reading_options(load({"a": {**unseeing, "reward": f"{HERE}.zero"}}))["check"]
        assert refusing(read)[0] == "context"
    assert SPEC.reading_options(recipe)["check"](read) is None
    assert SPEC.reading_options(command)["check"](Task("1", "Who?", ("Bob",))) is None


async def test_the_math_agent_computes_in_the_sandbox_and_is_told_its_mistakes(isolation: None, tokenizer: Any) -> None:
    words = [call("python", code=code) for code in ("print(6 * 7)", "1 / 0", 3)]
    recipe = load({"a": {"run": "agentic.agent.math_agent.run", "reward": "agentic.agent.rewards.boxed"}}, LONG)
    policy = script_policy(tokenizer, [*words, "So it is \\boxed{42}."])
    task = Task("1", "What is six times seven?", ("42",))
    (done,) = await play(recipe, tokenizer, [task], policy=policy)
    assert (done.reward, len(done.turns)) == (1.0, 4), done.log
    shown = tokenizer.decode(done.turns[-1].prompt_ids)
    for told in ("tool\n42<", "ZeroDivisionError", "code of python must be of type string"):
        assert told in shown


def test_f1_reads_the_last_box_and_takes_the_best_accepted_answer() -> None:
    task = Task("t", "Who?", ("Lord Byron", "George Gordon Byron"))
    replies = (r"\boxed{George Byron}", r"Byron? \boxed{Ada}", "the poet lord byron", "")
    assert [round(token_f1(task, reply), 3) for reply in replies] == [0.8, 0.0, 0.8, 0.0]
    replies = ("北京大学", "在北京，大学。", "上海", "Beijing")
    assert [round(token_f1(Task("t", "哪？", ("北京大学",)), reply), 3) for reply in replies] == [1.0, 0.889, 0.0, 0.0]
    assert [token_f1(Task("t", "吗？", ("是",)), reply) for reply in ("是的。", "不是", "是不是")] == [1.0, 0.0, 0.0]
