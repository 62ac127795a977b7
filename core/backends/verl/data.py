"""Writes tasks as the Parquet file that verl's RLHFDataset reads; our own record goes along as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from core.backends.verl.rollouts import RECORD
from core.data.files import task_to_record
from core.types import Task

AGENT = "tokentrue"
"""Names our agent loop in the data of a job, whatever the method."""


def write_tasks(target: Path, tasks: Iterable[Task], source: Path, agent_name: str = AGENT) -> int:
    """Write the tasks of `source` for an agent loop and return their number."""
    rows = [to_row(task, index, agent_name) for index, task in enumerate(tasks)]
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), target)
    return len(rows)


def to_row(task: Task, index: int, agent_name: str) -> dict[str, Any]:
    """Make the row of a task: `prompt` feeds verl's tables and filters, the agent loop reads `extra_info`."""
    return {
        "prompt": [{"role": str(message["role"]), "content": str(message["content"])} for message in task.messages],
        "data_source": agent_name,
        "agent_name": agent_name,
        "reward_model": {"style": "rule", "ground_truth": next(iter(task.answers), "")},
        "extra_info": {"index": index, RECORD: json.dumps(task_to_record(task))},
    }
