"""Reads the task that a backend's loop hands to a rollout: our own record, or a prompt and a label of other data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.data.files import SourceLocation
from core.data.tasks import convert_records
from core.types import Task


def read_task(
    prompt: Any, label: Any, metadata: Any, path: str, number: Any, options: Mapping[str, Any] | None = None
) -> Task:
    """Read the Task of record `number` of the file `path`: prompt, label and metadata, or our own record as metadata.

    `options` are the method's, for a file that tokentrue did not write.

    Raises:
        DataError: a field is missing, empty or of the wrong type, or the record is not what `options` ask for.
    """
    own = isinstance(metadata, dict) and {"task_id", "question", "answers"} <= metadata.keys()
    record = metadata if own else {"prompt": prompt, "label": label, "metadata": metadata}
    place = SourceLocation(Path(path), number, "prompt")
    chosen: Any = {"keep_messages": True, "short_answers": False, **(options or {}), "require_context": False}
    (task,) = convert_records([(place, record)], Path(path).stem, **chosen)
    return task if own else replace(task, task_id=f"{Path(path).stem}-{number}")
