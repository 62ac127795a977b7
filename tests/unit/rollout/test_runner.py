"""Many rollouts at once: bounded, on time, independent of each other, and every failure has a name."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from core.policy.base import Policy, PolicyError, Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import Method, PolicyFault, RolloutError
from core.rollout.runner import (
    EmptyStepGuard,
    Runner,
    check_reward,
    failed_trajectory,
    has_signal,
    measure_agreement,
    regrade_group,
)
from core.rollout.turns import Turns
from core.types import Completion, Sampling, Task, Trajectory, Turn, derive_seed

Rollout = Callable[[Task, Roles, Sampling], Awaitable[Trajectory]]


class FromFunction(Method):
    """A method whose rollout is a function."""

    def __init__(self, function: Rollout):
        self.function = function

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        return await self.function(task, roles, sampling)


def make_tasks(count: int) -> list[Task]:
    return [Task(f"t{i}", "q", ("a",), metadata={"index": i}) for i in range(count)]


def runner(
    function: Rollout, policy: Policy | None = None, *, concurrency: int = 64, deadline_s: float = 30.0
) -> Runner:
    roles = Roles({"policy": policy} if policy else {})
    return Runner(FromFunction(function), roles, concurrency=concurrency, deadline_s=deadline_s)


def turns_of(count: Callable[[Task], int]) -> Rollout:
    """Rollouts of as many turns as `count` says, the prompt being (task index, turn)."""

    async def rollout(task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        turns = []
        for turn in range(count(task)):
            prompt = (task.metadata["index"], turn)
            turns.append(Turn("turn", prompt, await roles["policy"].generate(prompt, sampling), True))
        return Trajectory(task.task_id, tuple(turns), reward=1.0)

    return rollout


async def test_groups_come_in_the_order_of_tasks_and_members_have_their_own_seeds():
    async def rollout(task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        await asyncio.sleep(0.01 * (3 - task.metadata["index"]))
        return Trajectory(task.task_id, (), reward=0.0, log={"seed": sampling.seed})

    groups = await runner(rollout).run_groups(make_tasks(3), 4, Sampling(), seed="s")
    again = await runner(rollout, concurrency=1).run_groups(make_tasks(3), 4, Sampling(), seed="s")
    other = await runner(rollout).run_groups(make_tasks(3), 4, Sampling(), seed="another")
    seeds = [[t.log["seed"] for t in group] for group in groups]
    assert [[t.task_id for t in group] for group in groups] == [[f"t{i}"] * 4 for i in range(3)]
    assert len({seed for group in seeds for seed in group}) == 12
    assert seeds == [[t.log["seed"] for t in group] for group in again]
    assert not {s for g in seeds for s in g} & {t.log["seed"] for g in other for t in g}
    assert seeds[1][2] == derive_seed("s", 1, 2)


@pytest.mark.parametrize("asked", [0, 2])
async def test_a_failure_of_the_policys_own_doing_is_a_zero_with_its_turns(asked: int):
    """Unless the policy had no turn yet: then the task or the recipe is to blame."""

    async def rollout(task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        turns = Turns(sampling)
        for call in range(asked):
            await asyncio.create_task(turns.ask(roles["policy"], "policy", (1, call), 4))
        raise PolicyFault("too_long", "the prompt grew", turns.recorded)

    rollouts = runner(rollout, ScriptedPolicy(lambda prompt, sampling: [7]))
    first, second = (await rollouts.run_groups(make_tasks(1), 2, Sampling(), seed=0))[0]
    assert first.failure == second.failure == "too_long"
    if asked:
        assert (first.status, first.reward, first.metrics) == ("truncated", 0.0, {"own_faults": 1.0})
        assert (
            [turn.prompt_ids for turn in first.turns] == [turn.prompt_ids for turn in second.turns] == [(1, 0), (1, 1)]
        )
    else:
        assert (first.status, first.reward) == ("failed", None)


async def test_no_more_than_concurrency_at_once():
    running = most = 0

    async def rollout(task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return Trajectory(task.task_id, (), reward=0.0)

    groups = await runner(rollout, concurrency=3).run_groups(make_tasks(5), 4, Sampling(), seed=0)
    assert most == 3
    assert sum(map(len, groups)) == 20


async def test_no_barrier_between_turns():
    """The fast rollouts finish all their turns while a slow one is still in its first."""
    finished: list[str] = []

    class Uneven:
        async def generate(self, prompt_ids, sampling, session=None):
            await asyncio.sleep(0.3 if prompt_ids[0] == 0 else 0.005)
            return Completion((1,), (0.0,), "stop")

    inner = turns_of(lambda task: 1 if task.metadata["index"] == 0 else 6)

    async def rollout(task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        trajectory = await inner(task, roles, sampling)
        finished.append(task.task_id)
        return trajectory

    began = time.perf_counter()
    await runner(rollout, Uneven()).run_groups(make_tasks(5), 1, Sampling(), seed=0)
    assert finished[-1] == "t0"
    assert sorted(finished[:-1]) == ["t1", "t2", "t3", "t4"]
    assert time.perf_counter() - began < 0.3 + 4 * 6 * 0.005 + 0.2


async def test_a_rollout_past_its_deadline_fails_alone_and_its_call_is_cancelled():
    slow = ScriptedPolicy(lambda prompt, sampling: [1], latency=10.0)

    async def rollout(task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        if task.task_id == "t0":
            await roles["policy"].generate((1,), sampling)
        return Trajectory(task.task_id, (), reward=1.0)

    late, fine = await runner(rollout, slow, deadline_s=0.05).run_groups(make_tasks(2), 1, Sampling(), seed=0)
    assert (late[0].status, late[0].failure, late[0].reward) == ("failed", "deadline", None)
    assert "0.05 s" in late[0].log["error"]
    assert (fine[0].status, fine[0].reward) == ("completed", 1.0)
    assert slow.cancelled == 1


async def test_the_deadline_starts_when_the_rollout_does():
    async def rollout(task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        await asyncio.sleep(0.04)
        return Trajectory(task.task_id, (), reward=1.0)

    groups = await runner(rollout, concurrency=1, deadline_s=0.3).run_groups(make_tasks(10), 1, Sampling(), seed=0)
    assert [group[0].status for group in groups] == ["completed"] * 10


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RolloutError("no_context", "empty"), "no_context"),
        (PolicyError("engine", "down"), "engine"),
        (KeyError("role"), "exception_KeyError"),
        (TimeoutError("a tool gave up"), "exception_TimeoutError"),
        (asyncio.CancelledError(), "cancelled"),
    ],
)
async def test_what_a_rollout_raises_names_its_failure(error: BaseException, kind: str):
    async def rollout(task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        if task.task_id == "t1":
            raise error
        await asyncio.sleep(0.01)
        return Trajectory(task.task_id, (), reward=1.0)

    groups = await runner(rollout).run_groups(make_tasks(3), 1, Sampling(), seed=0)
    assert [group[0].failure for group in groups] == [None, kind, None]
    assert groups[1][0].turns == ()


async def test_cancelling_the_run_cancels_its_rollouts():
    policy = ScriptedPolicy(lambda prompt, sampling: [1], latency=10.0)
    run = asyncio.create_task(runner(turns_of(lambda _: 1), policy).run_groups(make_tasks(3), 2, Sampling(), seed=0))
    await asyncio.sleep(0.02)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await asyncio.sleep(0)
    assert policy.cancelled == 6


def test_a_signal_needs_two_different_rewards_of_finished_rollouts():
    def group(*rewards: float | None) -> list[Trajectory]:
        return [failed_trajectory("t", "x", "") if r is None else Trajectory("t", (), reward=r) for r in rewards]

    assert has_signal(group(0.0, 1.0, None))
    assert not has_signal(group(1.0, 1.0))
    assert not has_signal(group(1.0, None))
    assert not has_signal(group(None, None))
    assert not has_signal([Trajectory("t", (), reward=None), Trajectory("t", (), reward=1.0)])


def test_only_empty_steps_in_a_row_stop_a_run():
    failed, valid = failed_trajectory("t", "deadline", "late"), Trajectory("t", (), reward=0.0)
    guard = EmptyStepGuard()
    for step in ([failed], [failed, failed], [failed, valid], [failed], [failed]):
        assert guard.check(step, end_after=3) is None
    reason = guard.check([failed, failed], end_after=3)
    assert reason == "every rollout of 3 steps in a row failed: 2 x deadline (first: late)"


@pytest.mark.parametrize("reward", [math.nan, -math.inf, None, "1"])
async def test_a_reward_that_is_no_finite_number_fails_its_rollout_by_name(reward: Any):
    async def rollout(task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        return Trajectory(task.task_id, (), reward=reward if task.task_id == "t1" else 1.0)

    groups = await runner(rollout).run_groups(make_tasks(3), 1, Sampling(), seed=0)
    assert [group[0].failure for group in groups] == [None, "bad_reward", None]
    assert groups[1][0].log["error"] == f"task t1: the reward is {reward!r}, and must be a finite number"


@pytest.mark.parametrize(
    ("turn", "named"), [({"reward": math.inf}, "reward inf"), ({"advantage": (0.5, math.nan)}, "advantage (0.5, nan)")]
)
async def test_a_turn_whose_credit_is_no_finite_number_fails_its_rollout(turn: dict[str, Any], named: str):
    """Its row would take the gradient of the whole step."""
    good = Turn("act", (1,), Completion((3, 4), (0.0, 0.0), "stop"), True, reward=1.0)

    async def rollout(task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        return Trajectory(task.task_id, (good, replace(good, **turn) if task.task_id == "t1" else good), reward=1.0)

    groups = await runner(rollout).run_groups(make_tasks(2), 1, Sampling(), seed=0)
    assert [group[0].failure for group in groups] == [None, "exception_ValueError"]
    assert named in groups[1][0].log["error"]


def test_numbers_of_other_kinds_are_plain_and_a_metric_that_is_none_fails_its_rollout():
    odd = Trajectory("t", (), reward=cast(Any, np.float32(0.5)), metrics={"moves": cast(Any, np.int64(3))})
    checked = check_reward(odd)
    assert (type(checked.reward), type(checked.metrics["moves"])) == (float, float)
    for value in (None, "3", math.nan):
        failed = check_reward(Trajectory("t", (), reward=1.0, metrics={"moves": cast(Any, value)}))
        assert failed.failure == "bad_metrics"
        assert f"the metric moves is {value!r}" in failed.log["error"]


def test_a_group_that_cannot_be_compared_fails_by_name():
    group = [Trajectory("t", (), reward=0.5), Trajectory("t", (), reward=1.0)]
    task = Task("t", "?", ("x",))

    def divide(task: Task, group: Sequence[Trajectory]) -> Sequence[Trajectory]:
        return [replace(trajectory, reward=1 / 0) for trajectory in group]

    assert [t.failure for t in regrade_group(divide, task, group)] == ["exception_ZeroDivisionError"] * 2
    lost = regrade_group(lambda task, group: [replace(group[0], reward=math.nan), group[1]], task, group)
    assert [(t.failure, t.reward) for t in lost] == [("bad_reward", None), (None, 1.0)]


def test_a_group_that_agrees_is_easy_where_it_is_right_also_if_its_reward_is_scaled_within_it() -> None:
    def group(reward: float, **metrics: float) -> list[Trajectory]:
        return [Trajectory("t", (), reward=reward, metrics=metrics)] * 2

    groups = [group(0.0, correct=1.0), group(0.0, correct=0.0), group(0.5), group(-1.0)]
    assert measure_agreement(groups) == {"easy_groups": 0.5, "hard_groups": 0.5}
