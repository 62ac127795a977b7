"""What plays an environment: it is an agent (core/gateway/agent.py) that brings its own tasks and reward."""

from __future__ import annotations

from abc import ABC, abstractmethod

from core.gateway import Endpoint, Outcome
from core.rollout.method import RolloutError
from core.types import Task


class AgentEnvironment(ABC):
    """Plays one environment. `metadata.index` of a task says which of the environment's tasks it is."""

    @abstractmethod
    async def __call__(self, task: Task, endpoint: Endpoint) -> Outcome:
        """Play a task with the policy at `endpoint`; return the answer and the environment's reward.

        Raises:
            RolloutError: `environment` if the environment fails, `bad_task` if it has another task of this index.
        """

    async def read_task(self, index: int) -> tuple[str, str | None]:
        """Return the prompt of a task, and its key: what other tasks of this index do not have, as `metadata.key`.

        Raises:
            RolloutError: `bad_task` if there is no such task.
        """
        raise RolloutError("bad_task", "the environment has no tasks; write records of your own")

    async def close(self) -> None:
        """End what was started."""
        return None
