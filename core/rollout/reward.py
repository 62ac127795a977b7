"""Gives rollouts the reward of a user's function: `def reward(task, answer) -> float`, which may be asynchronous."""

from __future__ import annotations

import inspect
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from core.policy.base import Roles
from core.rollout.method import Method, PolicyFault, RolloutError
from core.types import Sampling, Task, Trajectory

logger = logging.getLogger(__name__)

Reward = Callable[[Task, str], float | Awaitable[float]]
"""Returns the reward of an answer."""

SLOW_S = 0.5
"""Says how long a function may take that is not asynchronous, before a warning tells of it."""
_told = set[str]()


async def call_reward(reward: Reward, task: Task, answer: str) -> float:
    """Return the reward of an answer. Raises RolloutError (`bad_reward`) if the function gives no finite number."""
    began = time.monotonic()
    try:
        value = reward(task, answer)
        if time.monotonic() - began > SLOW_S and (name := _name(reward)) not in _told:
            _told.add(name)
            about = "a call of %s takes long, and all rollouts wait for it: let it be `async def`, and await what waits"
            logger.warning(about, name)
        value = await value if inspect.isawaitable(value) else value
        if (number := to_number(value)) is not None:
            return float(number)
        problem = f"gave {value!r:.200}, and must give a finite number"
    except Exception as error:  # a user's function fails in its own ways
        problem = f"raised {type(error).__name__}: {error}"
    raise RolloutError("bad_reward", f"task {task.task_id}: the reward function {_name(reward)} {problem}")


def to_number(value: Any) -> float | None:
    """Return a finite number, as Python's where it is NumPy's or the like; None for all else, a text included."""
    with suppress(TypeError, ValueError, OverflowError):  # None or an array, for example
        if not isinstance(value, str) and math.isfinite(value):
            return value if type(value) in (int, float) else float(value)
    return None


def _name(reward: Reward) -> str:
    return f"{getattr(reward, '__module__', '')}.{getattr(reward, '__qualname__', reward)}"


class RewardedMethod(Method):
    """Runs a method, and rewards its answers by a function in place of the method's own reward.

    What the method gives its turns stays, for algorithms that read it.

    The answer is the field `answer_field` of a rollout's log; None is "", and so is the answer of a PolicyFault.
    """

    def __init__(self, method: Method, reward: Reward, answer_field: str):
        self.method = method
        self.reward = reward
        self.answer_field = answer_field
        self.needs = method.needs
        self.sandbox = method.sandbox

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        """Run one rollout. Raises RolloutError as `call_reward`, or if the method has no answer to this task."""
        try:
            trajectory = await self.method.rollout(task, roles, sampling)
        except PolicyFault as fault:
            fault.reward = await call_reward(self.reward, task, "")
            raise
        if trajectory.status == "failed":
            return trajectory
        if self.answer_field not in trajectory.log:
            raise RolloutError("bad_reward", f"task {task.task_id} ends without an answer that `reward` could look at")
        answer = trajectory.log[self.answer_field] or ""
        return replace(trajectory, reward=await call_reward(self.reward, task, answer))

    async def close(self) -> None:
        await self.method.close()
