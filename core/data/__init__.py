"""Reads data sets as Tasks, from files and the hub; writes JSONL."""

from core.data.files import DataError, read_records, write_jsonl
from core.data.tasks import Notes, iter_tasks, read_tasks

__all__ = ["DataError", "Notes", "iter_tasks", "read_records", "read_tasks", "write_jsonl"]
