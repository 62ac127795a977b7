"""What plays an environment: it is an agent (core/gateway/agent.py) that brings its own tasks and reward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

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

    @abstractmethod
    async def read_task(self, index: int) -> tuple[str, str | None]:
        """Return the prompt of a task, and its key: what other tasks of this index do not have, as `metadata.key`.

        Raises:
            RolloutError: `bad_task` if there is no such task.
        """

    async def close(self) -> None:
        """End what was started."""
        return None


def find_index(task: Task) -> int:
    """Return `metadata.index` of a task. Raises RolloutError (`bad_task`)."""
    index = task.metadata.get("index")
    if isinstance(index, int) and not isinstance(index, bool) and index >= 0:
        return index
    raise bad_task(task.task_id, f"metadata.index is {index!r}, and names no task of the environment")


def find_files(task: Task) -> Mapping[str, str]:
    """Return `metadata.files` of a task. Raises RolloutError (`bad_task`)."""
    files = task.metadata.get("files") or {}
    texts = files.items() if isinstance(files, Mapping) else [(".", None)]
    if any(not isinstance(text, str) or Path(path).is_absolute() or ".." in Path(path).parts for path, text in texts):
        raise RolloutError("bad_task", f"task {task.task_id}: metadata.files must be path -> text, inside of a folder")
    return files


def bad_task(task_id: str, problem: str) -> RolloutError:
    fix = "write the tasks again with `tokentrue data environment --preset FILE --out FILE --tasks 256`"
    return RolloutError("bad_task", f"task {task_id}: {problem}; {fix}")
