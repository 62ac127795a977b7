"""Writes tasks as the Parquet file that verl's RLHFDataset reads, with our own record as JSON, and reads its rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from core.backends.records import read_task
from core.data.files import DataError, task_to_record
from core.types import Task

AGENT = "tokentrue"
"""Names our agent loop in the data of a job, whatever the method."""
RECORD = "task"
"""Names the field of `extra_info` that holds our own record as JSON, which Parquet would otherwise pad with nulls."""


def write_tasks(target: Path, tasks: Iterable[Task], source: Path) -> int:
    """Write the tasks of `source` for our agent loop and return their number."""
    import pyarrow as pa  # here, because the agent loop only reads
    import pyarrow.parquet as pq

    rows = [to_row(task, index) for index, task in enumerate(tasks)]
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), target)
    return len(rows)


def to_row(task: Task, index: int) -> dict[str, Any]:
    """Make the row of a task: `prompt` feeds verl's tables and filters, the agent loop reads `extra_info`."""
    return {
        "prompt": [{"role": str(message["role"]), "content": str(message["content"])} for message in task.messages],
        "data_source": AGENT,
        "agent_name": AGENT,
        "reward_model": {"style": "rule", "ground_truth": next(iter(task.answers), "")},
        "extra_info": {"index": index, RECORD: json.dumps(task_to_record(task))},
    }


def read_row(fields: Mapping[str, Any], files: str | Sequence[str], options: Mapping[str, Any] | None = None) -> Task:
    """Read the Task of a row of verl's `files`: our record in `extra_info`, or the prompt and its ground truth.

    Raises:
        DataError: as core.backends.records.read_task, or our record is no JSON.
    """
    path, number = files if isinstance(files, str) else ",".join(files), fields.get("index")
    extra = fields.get("extra_info") or {}
    try:
        extra = json.loads(extra[RECORD]) if RECORD in extra else dict(extra)
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: record {number}: extra_info.{RECORD} is not JSON: {error}") from error
    label = (fields.get("reward_model") or {}).get("ground_truth")
    return read_task(fields.get("raw_prompt"), label, extra, path, number, options)
