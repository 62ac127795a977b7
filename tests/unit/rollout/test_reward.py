"""A user's reward: the same key for every method, and what a function does wrong fails its rollout by name."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from agentic.agent.rollout import build
from agentic.agent.world import WORLD
from core.config import RecipeError
from core.policy.base import Roles
from core.rollout.method import Method, MethodSpec, PolicyFault, RolloutError, method_spec
from core.rollout.reward import RewardedMethod, call_reward
from core.rollout.runner import Runner
from core.train.command import main
from core.types import Completion, Sampling, Task, Trajectory, Turn
from scripts import tokentrue
from tests.contract.test_presets import METHODS

TASK = Task("t7", "Which?", ("five",))
HERE = "tests.unit.rollout.test_reward"


def length(task: Task, answer: str) -> float:
    return float(len(answer) + len(task.answers[0]))


async def slow_length(task: Task, answer: str) -> float:
    return length(task, answer)


def broken(task: Task, answer: str) -> float:
    return 1 / 0


class Answers(Method):
    """Ends with a log, and a reward that must not be seen."""

    def __init__(self, **log: Any):
        self.log = log

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        return Trajectory(task.task_id, (), reward=-77.0, log=self.log)


@pytest.mark.parametrize("reward", [length, slow_length])
@pytest.mark.parametrize(("log", "found"), [({"answer": "abc"}, 7.0), ({"answer": None}, 4.0)])
async def test_the_function_takes_the_place_of_the_methods_reward(reward: Any, log: Any, found: float) -> None:
    method = RewardedMethod(Answers(**log), reward, "answer")
    assert (await method.rollout(TASK, Roles({}), Sampling())).reward == found


async def test_the_function_rewards_the_policys_own_faults_as_an_empty_answer_and_turns_keep_theirs() -> None:
    turn = Turn("act", (1, 2), Completion((7,), (-1.0,), "stop"), True, reward=1.0)

    class Earns(Method):
        async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
            if sampling.seed:
                raise PolicyFault("too_long", "the prompt grew", [turn])
            return Trajectory(task.task_id, (turn,), reward=1.0, log={"answer": "bad"})

    runner = Runner(RewardedMethod(Earns(), lambda *_: -1.0, "answer"), Roles({}), concurrency=1, deadline_s=9)
    first, fault = [await runner.run_one(TASK, Sampling(seed=seed)) for seed in (0, 1)]
    assert (first.reward, first.turns[0].reward) == (-1.0, 1.0)
    assert (fault.reward, fault.status, fault.failure) == (-1.0, "truncated", "too_long")


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        (broken, f"task t7: the reward function {HERE}.broken raised ZeroDivisionError: division by zero"),
        (lambda task, answer: None, "gave None, and must give a finite number"),
        (lambda task, answer: math.nan, "gave nan"),
        (lambda task, answer: -math.inf, "gave -inf"),
        (lambda task, answer: "1.0", "gave '1.0'"),
        (lambda task, answer: [1.0], "gave [1.0]"),
    ],
)
async def test_what_a_function_does_wrong_fails_that_rollout_by_name(reward: Any, says: str) -> None:
    runner = Runner(RewardedMethod(Answers(answer="x"), reward, "answer"), Roles({}), concurrency=1, deadline_s=9)
    failed = await runner.run_one(TASK, Sampling())
    assert (failed.status, failed.failure, failed.reward) == ("failed", "bad_reward", None)
    assert says in failed.log["error"]
    with pytest.raises(RolloutError, match="task t7"):
        await call_reward(reward, TASK, "x")


async def test_a_function_that_waits_is_told_once(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setattr("core.rollout.reward.SLOW_S", 0.01)

    def judge(task: Task, answer: str) -> float:
        time.sleep(0.02)
        return 1.0

    for reward in (judge, judge, slow_length):
        await call_reward(reward, Task("t", "?", ("x",)), "x")
    assert len(caplog.messages) == 1
    assert "judge takes long, and all rollouts wait for it: let it be `async def`" in caplog.messages[0]


async def test_a_rollout_without_an_answer_is_not_rewarded_for_an_empty_one() -> None:
    with pytest.raises(RolloutError, match="without an answer") as caught:
        await RewardedMethod(Answers(lines=[]), length, "answer").rollout(TASK, Roles({}), Sampling())
    assert caught.value.kind == "bad_reward"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_the_key_and_names_its_answer(method: str) -> None:
    spec = method_spec(method)
    recipe = spec.load("tiny", [f"reward={HERE}.length"])
    same = MethodSpec(method, spec.recipe, spec.presets, lambda recipe, tokenizer: Answers(), answer=spec.answer)
    built = same.build(recipe, None)
    assert isinstance(built, RewardedMethod)
    assert (built.reward, built.answer_field) == (length, "diff" if method == "coding" else "answer")
    assert isinstance(same.build(spec.load("tiny"), None), Answers)


@pytest.mark.parametrize(
    ("method", "preset", "overrides", "short"),
    [
        ("retool", "tiny", [], True),
        ("retool", "tiny", [f"reward={HERE}.length"], False),
        ("agentflow", "paper", [], False),
        ("agentflow", "paper", ["agentflow.reward=boxed"], True),
        ("agent", "seed", [], True),
        ("agent", "tiny", ["agent.agents.clerk.reward=" + HERE + ".length"], False),
    ],
)
def test_a_label_may_be_long_where_a_judge_or_a_function_of_the_user_reads_it(
    method: str, preset: str, overrides: list[str], short: bool
) -> None:
    spec = method_spec(method)
    recipe = spec.load(preset, [_name_agent(each) for each in overrides])
    assert spec.reading_options(recipe)["short_answers"] is short


def test_a_users_reward_stands_alone() -> None:
    """Not beside an agent's own, nor is it compared within a group."""
    recipe = method_spec("agent").load("tiny", [f"reward={HERE}.length", "model.max_model_len=64"])
    team = build(recipe, WORLD.train_tokenizer())
    assert [agent.grade for agent in team.agents.values()] == [None]
    spec, group = method_spec("toolorchestra"), [Trajectory("t", (), reward=3.0), Trajectory("t", (), reward=5.0)]
    regrade = spec.regrade(spec.load("paper", [f"reward={HERE}.length"]))
    assert regrade is not None
    assert regrade(TASK, group) == group


def test_an_agent_may_leave_its_own_reward_out() -> None:
    agent = "agent.agents.clerk.reward=null"
    with pytest.raises(RecipeError, match=r"agent.agents.\w+.reward is missing; set that, or `reward`"):
        method_spec("agent").load("tiny", [_name_agent(agent)])
    assert method_spec("agent").load("tiny", [_name_agent(agent), f"reward={HERE}.length"]).reward == f"{HERE}.length"


def _name_agent(override: str) -> str:
    return override.replace("clerk", next(iter(method_spec("agent").load("tiny").agent.agents)))


@pytest.mark.parametrize("path", ["no.such.reward", f"{HERE}.no_such", f"{HERE}.TASK", "reward"])
@pytest.mark.parametrize("method", ["retool", "memagent"])
def test_a_dry_run_refuses_a_path_that_does_not_import(method: str, path: str, capsys: Any) -> None:
    assert main([method, "--dry-run", "--set", f"reward={path}"]) == 1
    said = capsys.readouterr()
    assert f"error: reward: '{path}': " in said.err
    assert "package.module.function" in said.err
    assert said.out == ""


@pytest.mark.parametrize("words", [["run"], ["train"], ["train", "--backend", "slime"]])
def test_so_do_all_commands_and_backends(words: list[str], capsys: Any) -> None:
    command, *more = words
    assert (
        tokentrue.main([command, "search_r1", *more, "--preset", "paper", "--dry-run", "--set", "reward=no.such"]) == 1
    )
    assert "error: reward: 'no.such': No module named 'no'" in capsys.readouterr().err


def test_the_functions_of_agents_are_checked_too(capsys: Any) -> None:
    wrong = _name_agent("agent.agents.clerk.run=no.such.run")
    assert main(["agent", "--dry-run", "--set", wrong]) == 1
    assert f"error: {wrong.partition('=')[0]}: 'no.such.run': No module named 'no'" in capsys.readouterr().err
