"""The policy sees the box that it names, is rewarded for a right answer, and opens no more boxes than it may."""

from __future__ import annotations

import asyncio

import pytest

from agentic.skeleton.rollout import SPEC, SkeletonRollout
from agentic.skeleton.world import WORLD
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.types import Sampling, Task, Trajectory
from core.worlds import encode_turn

TASK = Task("t", "What is in the red box?", ("lamp",), "red: lamp\nblue: key")


def run(*replies: str) -> tuple[Trajectory, str]:
    """Return the rollout in which the policy says `replies`, and the last prompt that it saw."""
    tokenizer, said = WORLD.train_tokenizer(), iter(replies)
    policy = ScriptedPolicy(lambda prompt, sampling: encode_turn(tokenizer, next(said)))
    method = SkeletonRollout(SPEC.load("tiny"), tokenizer)
    trajectory = asyncio.run(method.rollout(TASK, Roles({"policy": policy}), Sampling()))
    return trajectory, tokenizer.decode(trajectory.turns[-1].prompt_ids)


def test_the_policy_sees_the_box_that_it_names_and_no_other() -> None:
    trajectory, prompt = run("blue", "\\boxed{key}")
    assert "tool\nkey" in prompt
    assert "lamp" not in prompt
    assert len(trajectory.turns) == 2


@pytest.mark.parametrize(
    ("replies", "reward", "status"),
    [
        (["red", "\\boxed{ lamp}"], 1.0, "completed"),
        (["blue", "\\boxed{ key}"], 0.0, "completed"),
        (["lamp"], 0.0, "completed"),
        (["blue", "red"], 0.0, "truncated"),
        (["lamp, and so on without an end"], 0.0, "truncated"),
    ],
)
def test_a_right_answer_is_rewarded(replies: list[str], reward: float, status: str) -> None:
    trajectory, _ = run(*replies)
    assert (trajectory.reward, trajectory.status) == (reward, status)
