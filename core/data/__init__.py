"""Data sets as Tasks: `iter_tasks` and `read_tasks` from JSONL, JSON and parquet; `write_jsonl`."""

from core.data.files import DataError, read_records, write_jsonl
from core.data.tasks import iter_tasks, read_tasks

__all__ = ["DataError", "iter_tasks", "read_records", "read_tasks", "write_jsonl"]
