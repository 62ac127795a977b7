"""Runs many rollouts at once: each is its own coroutine, so no turn waits for another trajectory's turn.

A rollout that raises or exceeds its deadline becomes a failed Trajectory (a PolicyFault may leave a truncated one); it
never affects the others.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import stdev
from typing import Any, cast

from core.policy.base import PolicyError, Roles
from core.rollout.method import Method, PolicyFault, Regrade, RolloutError
from core.rollout.reward import to_number
from core.types import Group, Sampling, Task, Trajectory, derive_seed

logger = logging.getLogger(__name__)


class Failures:
    """Counts the failed ones among rollouts, or the samples of them, by kind, and keeps the first message of each."""

    def __init__(self, trajectories: Iterable[Any] = ()) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        for trajectory in trajectories:
            if trajectory.status == "failed":
                self.add(trajectory)

    def add(self, trajectory: Trajectory) -> None:
        kind = trajectory.failure or "unknown"
        self.counts[kind] += 1
        self.first.setdefault(kind, str(trajectory.log.get("error", "")))

    def tell(self, where: str, told: set[str]) -> None:
        """Log the first message of each kind that is not `told` yet: rollouts of one kind fail alike."""
        for kind in self.counts.keys() - told:
            logger.warning("%s: a rollout failed with %s: %s", where, kind, self.first[kind][-500:])
        told |= self.counts.keys()

    def describe(self) -> str:
        """Write the counts in one line, the most frequent kind first."""
        return "; ".join(f"{n} x {kind} (first: {self.first[kind]})" for kind, n in self.counts.most_common())


class EmptyStepGuard:
    """Counts consecutive training steps without one valid rollout, and says when training should end."""

    def __init__(self) -> None:
        self._empty_steps = 0

    def check(self, trajectories: Iterable[Trajectory], end_after: int) -> str | None:
        """Count one step by its trajectories; describe its failures if all of the last `end_after` steps failed."""
        trajectories = list(trajectories)
        if any(trajectory.status != "failed" for trajectory in trajectories):
            self._empty_steps = 0
            return None
        self._empty_steps += 1
        failures = Failures(trajectories)
        logger.error("every rollout of this step failed: %s", failures.describe())
        if self._empty_steps < end_after:
            return None
        return f"every rollout of {self._empty_steps} steps in a row failed: {failures.describe()}"


class Runner:
    """Runs a method's rollouts against the roles, at most `concurrency` at a time, each within `deadline_s` seconds.

    `watch` gets the numbers of finished and of all rollouts of the groups that are running.
    """

    def __init__(
        self,
        method: Method,
        roles: Roles,
        *,
        concurrency: int,
        deadline_s: float,
        watch: Callable[[int, int], None] = lambda finished, total: None,
    ):
        self.method = method
        self.roles = roles
        self.deadline_s = deadline_s
        self.watch = watch
        self._slots = asyncio.Semaphore(concurrency)

    async def run_groups(
        self, tasks: Sequence[Task], group_size: int, sampling: Sampling, seed: object
    ) -> list[list[Trajectory]]:
        """Run `group_size` rollouts of each task and return the groups in the order of the tasks.

        A rollout's seed follows from `seed`, the place of its task among `tasks` and its own place in the group.
        """
        finished = 0

        async def run_one(task: Task, place: int, member: int) -> Trajectory:
            nonlocal finished
            trajectory = await self.run_one(task, replace(sampling, seed=derive_seed(seed, place, member)))
            finished += 1
            self.watch(finished, len(tasks) * group_size)
            return trajectory

        rollouts = [run_one(task, place, member) for place, task in enumerate(tasks) for member in range(group_size)]
        trajectories = await asyncio.gather(*rollouts)
        return [list(trajectories[i : i + group_size]) for i in range(0, len(trajectories), group_size)]

    async def run_one(self, task: Task, sampling: Sampling) -> Trajectory:
        """Run one rollout; a failure is a Trajectory too."""
        async with self._slots:
            return await self._run(task, sampling)

    async def _run(self, task: Task, sampling: Sampling) -> Trajectory:
        try:
            async with asyncio.timeout(self.deadline_s) as limit:
                return check_reward(await self.method.rollout(task, self.roles, sampling))
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            return failed_trajectory(task.task_id, "cancelled", traceback.format_exc())
        except (RolloutError, PolicyError) as error:
            failed = failed_trajectory(task.task_id, error.kind, str(error))
            if isinstance(error, PolicyFault) and any(turn.trained for turn in error.turns):
                return replace(
                    failed, turns=error.turns, status="truncated", reward=error.reward, metrics={"own_faults": 1.0}
                )
            return failed
        except Exception as error:
            if limit.expired():
                return failed_trajectory(task.task_id, "deadline", f"not finished after {self.deadline_s:g} s")
            return failed_trajectory(task.task_id, f"exception_{type(error).__name__}", traceback.format_exc())


def _cancelled_from_outside() -> bool:
    """Return whether this coroutine itself was cancelled, and not just something that the method waited for."""
    current = asyncio.current_task()
    return current is None or current.cancelling() > 0


def failed_trajectory(task_id: str, kind: str, message: str) -> Trajectory:
    """Make the Trajectory of a rollout that failed; `kind` is its name in the failure counts."""
    return Trajectory(task_id, turns=(), status="failed", failure=kind, log={"error": message})


def check_reward(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory with plain numbers: NumPy's float32 and the like do not mix with others in `statistics`.

    One whose reward is no finite number has failed as `bad_reward`, and so has one with such a metric as `bad_metrics`.
    """
    if trajectory.status == "failed":
        return trajectory
    numbers = {"reward": trajectory.reward, **{f"metric {name}": n for name, n in trajectory.metrics.items()}}
    plain = [to_number(value) for value in numbers.values()]
    for (name, value), number in zip(numbers.items(), plain, strict=True):
        if number is None:
            error = f"task {trajectory.task_id}: the {name} is {value!r}, and must be a finite number"
            return failed_trajectory(trajectory.task_id, "bad_reward" if name == "reward" else "bad_metrics", error)
    metrics = dict(zip(trajectory.metrics, cast(list[float], plain[1:]), strict=True))
    return replace(trajectory, reward=plain[0], metrics=metrics)


def regrade_group(regrade: Regrade, task: Task, group: Group) -> Sequence[Trajectory]:
    """Compare the rollouts of a group. If that fails, they have failed: the gradient says nothing about them."""
    try:
        return [check_reward(trajectory) for trajectory in regrade(task, group)]
    except Exception as error:
        kind = f"exception_{type(error).__name__}"
        return [failed_trajectory(trajectory.task_id, kind, traceback.format_exc()) for trajectory in group]


def has_signal(group: Sequence[Trajectory], min_std: float = 0.0) -> bool:
    """Return whether a group's rewards differ, with a sample std of at least `min_std`, so that it has an advantage.

    DAPO's dynamic sampling keeps such groups only.
    """
    rewards = _valid_rewards(group)
    return len(set(rewards)) > 1 and stdev(rewards) >= min_std


def measure_agreement(groups: Sequence[Group]) -> dict[str, float]:
    """Return the shares of groups whose rollouts all earned the same: more than 0 (`easy_groups`), or not (`hard_...`).

    Failed rollouts do not count. A metric `correct` decides: the reward of a group that is right may be scaled to 0.
    """
    valid = [[t for t in group if t.status != "failed" and t.reward is not None] for group in groups]
    agreed = [group[0] for group in valid if len({t.reward for t in group}) == 1]
    easy = sum(t.metrics.get("correct", t.reward or 0.0) > 0 for t in agreed)
    return {"easy_groups": easy / len(groups), "hard_groups": (len(agreed) - easy) / len(groups)}


def _valid_rewards(group: Group) -> list[float]:
    return [t.reward for t in group if t.status != "failed" and t.reward is not None]
