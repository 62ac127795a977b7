"""Many trajectories at once: each is its own coroutine, so no turn waits for another trajectory's turn.

A rollout that raises or overruns its deadline becomes a failed Trajectory; nothing it does reaches the others.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import stdev

from core.policy.base import PolicyError, Roles
from core.rollout.method import Method, RolloutError, derive_seed
from core.types import Sampling, Task, Trajectory


@dataclass
class Failures:
    """Failed rollouts by kind, with the first message of each kind."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, trajectory: Trajectory) -> None:
        kind = trajectory.failure or "unknown"
        self.counts[kind] += 1
        self.first.setdefault(kind, str(trajectory.log.get("error", "")))

    def describe(self) -> str:
        return "; ".join(f"{n} x {kind} (first: {self.first[kind]})" for kind, n in self.counts.most_common())


class Runner:
    """Runs a method's rollouts against the roles, at most `concurrency` at a time, each within `deadline_s` seconds."""

    def __init__(self, method: Method, roles: Roles, *, concurrency: int, deadline_s: float):
        self.method, self.roles, self.deadline_s = method, roles, deadline_s
        self._slots = asyncio.Semaphore(concurrency)

    async def run_groups(
        self, tasks: Sequence[Task], group_size: int, sampling: Sampling, seed: object
    ) -> list[list[Trajectory]]:
        """`group_size` trajectories of each task, in their order. Seeds follow from `seed`, place and member."""
        members = [
            self.run_one(task, replace(sampling, seed=derive_seed(seed, place, member)))
            for place, task in enumerate(tasks)
            for member in range(group_size)
        ]
        trajectories = await asyncio.gather(*members)
        return [list(trajectories[i : i + group_size]) for i in range(0, len(trajectories), group_size)]

    async def run_one(self, task: Task, sampling: Sampling) -> Trajectory:
        """One trajectory; a failure is a Trajectory too."""
        async with self._slots:
            try:
                async with asyncio.timeout(self.deadline_s) as limit:
                    return await self.method.rollout(task, self.roles, sampling)
            except asyncio.CancelledError:
                if _cancelled_from_outside():
                    raise
                return _failed(task, "cancelled", traceback.format_exc())
            except (RolloutError, PolicyError) as error:
                return _failed(task, error.kind, str(error))
            except Exception as error:
                if limit.expired():
                    return _failed(task, "deadline", f"not finished after {self.deadline_s:g} s")
                return _failed(task, f"exception_{type(error).__name__}", traceback.format_exc())


def _cancelled_from_outside() -> bool:
    """Whether this coroutine itself was cancelled, and not merely something that the method waited for."""
    current = asyncio.current_task()
    return current is None or current.cancelling() > 0


def _failed(task: Task, kind: str, message: str) -> Trajectory:
    return Trajectory(task.task_id, turns=(), status="failed", failure=kind, log={"error": message})


def has_signal(group: Sequence[Trajectory], min_std: float = 0.0) -> bool:
    """Whether a group's rewards differ, by a sample std of at least `min_std`, so that it has an advantage (what DAPO's
    dynamic sampling keeps)."""
    rewards = [t.reward for t in group if t.status != "failed" and t.reward is not None]
    return len(set(rewards)) > 1 and stdev(rewards) >= min_std
