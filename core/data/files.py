"""This module reads records from files and the hub, and writes JSONL. Errors name file, record, field and fix.

| given | read by | |
|---|---|---|
| a .parquet file | pyarrow | nested types as they are, maps as objects |
| a .csv or .tsv file | csv | the first line names the fields; every value stays text |
| another file | json | a JSON list, or JSON lines |
| a folder that `save_to_disk` wrote | datasets | one split |
| `owner/name[:config][:split]` | datasets | the hub, or its cache here |

A text file may be packed with gzip and begin with a byte order mark.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import math
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO
from uuid import UUID

from core.types import Task

FORMATS = "JSONL, JSON, CSV or parquet"

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
    """Yield each record with its location. The table above says what `path` may be.

    Raises:
        DataError: the data are missing, empty or broken, or a record is not an object.
    """
    name, path = str(path), Path(path)
    location = None
    try:
        for location, record in _open_records(name, path):
            if not isinstance(record, dict):
                raise DataError(
                    f"{location}: a {type(record).__name__}, not an object. Fix: one JSON object per record."
                )
            yield location, record
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error}). Fix: unpack or convert the file first.") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: gzip cannot unpack it ({error}). Fix: download or write it again.") from None
    if location is None:
        raise DataError(f"{path}: holds no records. Fix: check that it was written completely.")


def _open_records(name: str, path: Path) -> Iterator[tuple[SourceLocation, Any]]:
    from core.data.hub_sets import is_hub_set, read_hub_set, read_saved_set

    if path.is_file():
        read = {".parquet": _read_parquet, ".csv": _read_csv, ".tsv": _read_csv}
        return read.get(Path(path.name.removesuffix(".gz")).suffix, _read_json)(path)
    if path.is_dir():
        if not any((path / file).is_file() for file in ("state.json", "dataset_dict.json")):
            raise DataError(f"{path}: is a folder. Fix: give the file in it: {FORMATS}; or its split: {path}:train.")
        return _number(path, read_saved_set(path))
    if is_hub_set(name):
        return _number(path, read_hub_set(name))
    raise DataError(f"{path}: no such file. Fix: check the path, or download or generate the data set first.")


def _number(path: Path, records: Iterable[Any]) -> Iterator[tuple[SourceLocation, Any]]:
    return ((SourceLocation(path, number, "record"), drop_gaps(record)) for number, record in enumerate(records))


def task_to_record(task: Task) -> dict[str, Any]:
    """Return a task as a record of our own format."""
    record = {
        "task_id": task.task_id,
        "question": task.question,
        "answers": list(task.answers),
        "context": task.context,
        "metadata": dict(task.metadata),
    }
    return {**record, "earlier_messages": list(task.earlier_messages)} if task.earlier_messages else record


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_jsonl(
    path: str | Path, tasks: Iterable[Task], to_record: Callable[[Task], dict[str, Any]] = task_to_record
) -> int:
    """Write all tasks or nothing, by default in our own format. Returns their number."""
    return write_records(path, map(to_record, tasks))


def write_records(path: str | Path, records: Iterable[dict[str, Any]], source: str | Path | None = None) -> int:
    """Write all records as JSON lines or nothing. Returns their number.

    Dates and times are written as ISO 8601, exact decimals and UUIDs as text.

    Raises:
        DataError: a value has no form in JSON. It names `source`, by default `path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    count = 0
    try:
        with partial.open("w", encoding="utf-8") as file:
            for count, record in enumerate(records, start=1):
                location = SourceLocation(Path(source or path), count - 1, "record")
                file.write(json.dumps(_jsonable(record, "", location), ensure_ascii=False) + "\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _jsonable(value: Any, name: str, location: SourceLocation) -> Any:
    """Return a value of a field as JSON can hold it."""
    if isinstance(value, Mapping):
        return {key: _jsonable(part, f"{name}.{key}".lstrip("."), location) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(part, name, location) for part in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, UUID) or (isinstance(value, Decimal) and value.is_finite()):
        return str(value)
    problem = f"JSON cannot hold {value!r:.60} ({type(value).__name__})"
    raise location.error(name, problem, "leave the field out, or write text, a number or null there")


def _open_text(path: Path) -> TextIO:
    """Open a text file without its byte order mark; gzip's own first bytes tell that it is packed."""
    file = path.open("rb")
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return TextIOWrapper(gzip.GzipFile(fileobj=file) if packed else file, encoding="utf-8-sig", newline="")


def _read_csv(path: Path) -> Iterator[tuple[SourceLocation, Any]]:
    csv.field_size_limit(sys.maxsize)  # a document can be long
    with _open_text(path) as file:
        rows = csv.reader(file, delimiter="\t" if ".tsv" in path.suffixes else ",", strict=True)
        try:
            names = next(rows, [])
            if "" in names or len(set(names)) < len(names):
                raise DataError(f"{path}:1: columns without a name or with the same one: {names}. Fix: name each.")
            # Records are numbered, because one may have many lines.
            for number, values in enumerate(filter(None, rows)):
                location = SourceLocation(path, number, "record")
                if len(values) != len(names):
                    raise DataError(
                        f"{location}: {len(values)} values for {len(names)} columns. Fix: put a value that has commas, "
                        'quotes or line ends into quotes, with "" for a quote.'
                    )
                yield location, dict(zip(names, values, strict=True))
        except csv.Error as error:
            raise DataError(f"{path}:{rows.line_num}: broken CSV ({error}). Fix: repair the quotes there.") from None


def _read_json(path: Path) -> Iterator[tuple[SourceLocation, Any]]:
    with _open_text(path) as file:
        first = file.read(1)
        while first.isspace():
            first = file.read(1)
        file.seek(0)
        if first == "[":
            text = file.read()
            records = enumerate(_parse(text, path, 1))
            yield from _check_characters(text, ((SourceLocation(path, n, "record"), each) for n, each in records))
            return
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            yield from _check_characters(line, [(SourceLocation(path, number, "line"), _parse(line, path, number))])


def _parse(text: str, path: Path, line: int) -> Any:
    """Parse JSON that begins at a line of a file. Raises DataError, which names the line."""
    fix = "repair or remove the line; a cut last line means an unfinished download or write"
    if path.suffix not in (".jsonl", ".json"):
        fix = f"use {FORMATS}"
    try:
        return json.loads(text, object_pairs_hook=_make_object)
    except json.JSONDecodeError as error:
        place, problem = f"{path}:{line + error.lineno - 1}", f"at column {error.colno} ({error.msg})"
    except (RecursionError, ValueError) as error:  # nested too deeply, too many digits, or a field twice
        place, problem = f"{path}:{line}", f"({error})"
    raise DataError(f"{place}: broken JSON {problem}. Fix: {fix}.")


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object. Raises ValueError if it has a field twice: json would take the last one."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"field {next(name for name in names if names.count(name) > 1)!r} occurs twice in an object")
    return made


def _check_characters(text: str, records: Iterable[tuple[SourceLocation, Any]]) -> Iterator[tuple[SourceLocation, Any]]:
    """Yield the records of a text. Raise DataError for half of a character in one, which no tokenizer can encode."""
    suspicious = _SURROGATE.search(text)
    for location, record in records:
        for field, value in record.items() if suspicious and isinstance(record, dict) else ():
            try:
                json.dumps([field, value], ensure_ascii=False).encode()
            except UnicodeEncodeError:
                raise location.error(
                    field.encode(errors="replace").decode(), "half of a character (a lone surrogate)", "repair the text"
                ) from None
        yield location, record


def drop_gaps(value: Any) -> Any:
    """Leave out the nulls with which Arrow fills an object where only other records have a key."""
    if isinstance(value, Mapping):
        return {name: drop_gaps(part) for name, part in value.items() if part is not None}
    return [drop_gaps(part) for part in value] if isinstance(value, list) else value


def _read_parquet(path: Path) -> Iterator[tuple[SourceLocation, Mapping[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=64):
                for record in batch.to_pylist(maps_as_pydicts="strict"):
                    yield SourceLocation(path, number, "record"), drop_gaps(record)
                    number += 1
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: not a readable parquet file ({error}). Fix: download it again.") from None
