"""This module reads records from JSONL, JSON lists and parquet and writes JSONL. Errors name file, field and fix."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.types import Task

FORMATS = "JSONL, JSON or parquet"

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Finds escaped surrogates: only a text that has some can hold half of a character."""


class DataError(ValueError):
    """Says that a data set cannot be used as it is."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """Locates a record: `path:line` in JSONL, `path, record i` (from 0) in other formats."""

    path: Path
    number: int
    unit: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number}" if self.unit == "line" else f"{self.path}, {self.unit} {self.number}"

    def error(self, field: str, problem: str, fix: str) -> DataError:
        return DataError(f"{self}: field {field!r}: {problem}. Fix: {fix}.")


def read_records(path: str | Path) -> Iterator[tuple[SourceLocation, dict[str, Any]]]:
    """Yield each record with its location.

    The suffix .parquet marks a parquet file; in another file, the first character tells a JSON list from JSONL.

    Raises:
        DataError: the file is missing, empty or broken, or a record is not an object.
    """
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path}: is a folder. Fix: give the file in it: {FORMATS}.")
    if not path.is_file():
        raise DataError(f"{path}: no such file. Fix: check the path, or download or generate the data set first.")
    records = _read_parquet(path) if path.suffix == ".parquet" else _read_json(path)
    location = None
    try:
        for location, record in records:
            if not isinstance(record, dict):
                raise DataError(
                    f"{location}: a {type(record).__name__}, not an object. Fix: one JSON object per record."
                )
            yield location, record
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error}). Fix: unpack or convert the file first.") from None
    if location is None:
        raise DataError(f"{path}: holds no records. Fix: check that it was written completely.")


def task_to_record(task: Task) -> dict[str, Any]:
    """Return a task as a record of our own format."""
    return {
        "task_id": task.task_id,
        "question": task.question,
        "answers": list(task.answers),
        "context": task.context,
        "metadata": dict(task.metadata),
    }


def write_jsonl(
    path: str | Path, tasks: Iterable[Task], to_record: Callable[[Task], dict[str, Any]] = task_to_record
) -> int:
    """Write all tasks or nothing, by default in our own format. Returns their number."""
    return write_records(path, map(to_record, tasks))


def write_records(path: str | Path, records: Iterable[dict[str, Any]]) -> int:
    """Write all records as JSON lines or nothing. Returns their number."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    count = 0
    with partial.open("w", encoding="utf-8") as file:
        for count, record in enumerate(records, start=1):  # noqa: B007 (the count outlives the loop)
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    partial.replace(path)
    return count


def _read_json(path: Path) -> Iterator[tuple[SourceLocation, Any]]:
    with path.open(encoding="utf-8") as file:
        first = file.read(1)
        while first.isspace():
            first = file.read(1)
        file.seek(0)
        if first == "[":
            text = file.read()
            suspicious = _SURROGATE.search(text)
            for number, record in enumerate(_parse(text, path, 1)):
                location = SourceLocation(path, number, "record")
                if suspicious:
                    _check_characters(location, record)
                yield location, record
            return
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            record = _parse(line, path, number)
            location = SourceLocation(path, number, "line")
            if _SURROGATE.search(line):
                _check_characters(location, record)
            yield location, record


def _parse(text: str, path: Path, line: int) -> Any:
    """Parse JSON that begins at a line of a file. Raises DataError, which names the line."""
    fix = "repair or remove the line; a cut last line means an unfinished download or write"
    if path.suffix not in (".jsonl", ".json"):
        fix = f"use {FORMATS}"
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place, problem = f"{path}:{line + error.lineno - 1}", f"at column {error.colno} ({error.msg})"
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of too many digits
        place, problem = f"{path}:{line}", f"({error})"
    raise DataError(f"{place}: broken JSON {problem}. Fix: {fix}.")


def _check_characters(location: SourceLocation, record: Any) -> None:
    """Raise DataError if a text holds half of a character, which no tokenizer can encode."""
    for field, value in record.items() if isinstance(record, dict) else ():
        try:
            json.dumps([field, value], ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise location.error(
                field.encode(errors="replace").decode(), "half of a character (a lone surrogate)", "repair the text"
            ) from None


def _read_parquet(path: Path) -> Iterator[tuple[SourceLocation, Mapping[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=64):
                for record in batch.to_pylist():
                    yield SourceLocation(path, number, "record"), record
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable parquet file ({error}). Fix: download it again.") from None
