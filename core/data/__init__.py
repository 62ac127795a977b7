"""This package reads data sets as Tasks, from JSONL, JSON and parquet, and writes them as JSONL."""

from core.data.files import DataError, read_records, write_jsonl
from core.data.tasks import iter_tasks, read_tasks

__all__ = ["DataError", "iter_tasks", "read_records", "read_tasks", "write_jsonl"]
