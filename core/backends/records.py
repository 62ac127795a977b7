"""Writes a data set as the file that a framework reads, with our own record in it: so the method finds the same task
that the embedded backend would train on. A rollout reads its task of what the framework hands it.

    tokentrue data slime|verl SOURCE TARGET [--limit N]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from core.data.files import DataError, SourceLocation
from core.data.tasks import Notes, convert_records, iter_tasks
from core.options import make_command_parser, show_errors
from core.types import Task

WRITERS = {"slime": "core.backends.slime.samples", "verl": "core.backends.verl.data"}
"""Names the module of each framework, whose `write_tasks` writes tasks."""


def convert(framework: str, source: Path, target: Path, limit: int | None = None) -> int | None:
    """Write all tasks, or the first `limit` different ones, and return their number. A broken task writes nothing.

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
    once = limit is not None  # as an evaluation takes its tasks
    tasks = iter_tasks(
        source, require_context=None, keep_messages=True, short_answers=False, notes=notes, distinct=once
    )
    count: int = import_module(WRITERS[framework]).write_tasks(target, islice(tasks, limit), source)
    notes.tell(source)
    note.write_text(made_from, encoding="utf-8")
    return count


def describe_source(source: Path, limit: int | None) -> str:
    """Describe a file by its place, size and time of change, which takes no reading; "" if it is not there.

    It ends with the form of what is written, so that a file of an earlier version is written anew.
    """
    if not source.is_file():
        return ""
    state = source.stat()
    return f"{source.resolve()} {state.st_size} bytes {state.st_mtime_ns} ns limit {limit} prompts as messages\n"


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


@show_errors(DataError)
def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    count = convert(options.framework, options.source, options.target, options.limit)
    done = "there already" if count is None else f"{count} tasks of {options.source}"
    print(f"{options.target}: {done}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = make_command_parser("data", "Write a data set as the file that slime or verl reads.")
    parser.add_argument("framework", choices=WRITERS)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--limit", type=int, metavar="N", help="the first N different tasks only")
    return parser


if __name__ == "__main__":
    sys.exit(main())
