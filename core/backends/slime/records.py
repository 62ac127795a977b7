"""Writes a data set as the JSONL that slime reads: prompt, label, and our own record as metadata.

    tokentrue data slime SOURCE TARGET [--limit N]

slime passes metadata on unread, so the hooks find the same task that the embedded backend would train on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from core.data.files import DataError, task_to_record, write_records
from core.data.tasks import Notes, iter_tasks
from core.options import show_errors
from core.types import Task


def to_record(task: Task) -> dict[str, Any]:
    """Make the record that slime reads for a task."""
    return {"prompt": task.question, "label": next(iter(task.answers), ""), "metadata": task_to_record(task)}


def convert(source: Path, target: Path, limit: int | None = None) -> int | None:
    """Write the first `limit` tasks (all by default) and return their number. A broken task writes nothing.

    None says that `target` holds them already: the file beside it names the same source, as it still is.

    Raises:
        DataError: as `core.data.iter_tasks`.
    """
    note = target.with_name(target.name + ".source")
    made_from = describe_source(source, limit)
    if made_from and target.is_file() and note.is_file() and note.read_text(encoding="utf-8") == made_from:
        return None
    note.unlink(missing_ok=True)
    notes = Notes()
    tasks = iter_tasks(source, require_context=False, keep_messages=True, short_answers=False, notes=notes)
    count = write_records(target, map(to_record, islice(tasks, limit)), source)
    notes.tell(source)
    note.write_text(made_from, encoding="utf-8")
    return count


def describe_source(source: Path, limit: int | None) -> str:
    """Describe a file by its place, size and time of change, which takes no reading; "" if it is not there."""
    if not source.is_file():
        return ""
    state = source.stat()
    return f"{source.resolve()} {state.st_size} bytes {state.st_mtime_ns} ns limit {limit}\n"


@show_errors(DataError)
def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    count = convert(options.source, options.target, options.limit)
    done = "there already" if count is None else f"{count} tasks of {options.source}"
    print(f"{options.target}: {done}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tokentrue data slime", description="Write a data set as the JSONL that slime reads."
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--limit", type=int, help="the first N tasks only")
    return parser


if __name__ == "__main__":
    sys.exit(main())
