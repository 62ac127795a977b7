"""Reads data sets as Tasks, from JSONL, JSON and parquet; writes JSONL; downloads published sets and checks them."""

from core.data.files import DataError, read_records, write_jsonl
from core.data.tasks import iter_tasks, read_tasks

__all__ = ["DataError", "iter_tasks", "read_records", "read_tasks", "write_jsonl"]
