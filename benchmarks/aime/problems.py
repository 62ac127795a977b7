"""The problems, by name, from a file or from the hub."""

from __future__ import annotations

from pathlib import Path

from core.data.files import DataError
from core.data.sets import SETS, Questions, read_hub_records, prepare
from core.data.tasks import convert_records, read_tasks
from core.rewards.grade import integer
from core.types import Task


def load_problems(source: str, folder: Path) -> tuple[str, list[Task]]:
    """Name and problems of `source`: a file, `aime24` or `aime25` (from `folder`, where it is downloaded if missing),
    or `owner/name:split` on the hub.

    Raises:
        DataError: there is no such data, or an answer is not an integer.
    """
    name, tasks = _load(source, folder)
    for task in tasks:
        if any(integer(answer) is None for answer in task.answers):
            problem = f"{source}: {task.task_id}: answers {list(task.answers)} are no integers"
            raise DataError(f"{problem}. Fix: give problems of the AIME, which has no others.")
    return name, tasks


def _load(source: str, folder: Path) -> tuple[str, list[Task]]:
    if Path(source).is_file():
        return Path(source).stem, read_tasks(source, require_context=False)
    named = SETS.get(source)
    if isinstance(named, Questions):
        path = folder / named.file
        if not path.is_file():
            prepare(source, folder)
        return source, read_tasks(path, require_context=False)
    hub, _, split = source.partition(":")
    if hub.count("/") != 1 or not split:
        raise DataError(f"{source}: no such file. Fix: give a file, aime24, aime25, or owner/name:split on the hub.")
    name = hub.replace("/", "-")
    return name, list(convert_records(read_hub_records(hub, split), name, require_context=False))
