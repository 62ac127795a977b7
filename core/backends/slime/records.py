"""Writes tasks as the JSONL that slime reads: prompt, label, and our own record as metadata, which slime passes on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from core.data.files import task_to_record, write_records
from core.types import Task


def to_record(task: Task) -> dict[str, Any]:
    """Make the record that slime reads for a task."""
    return {"prompt": task.question, "label": next(iter(task.answers), ""), "metadata": task_to_record(task)}


def write_tasks(target: Path, tasks: Iterable[Task], source: Path) -> int:
    """Write the tasks of `source` and return their number."""
    return write_records(target, map(to_record, tasks), source)
