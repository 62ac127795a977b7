"""This module reads and writes files that survive `kill -9`.

Whole files are written atomically. A JSON-lines file loses at most the line that was being written.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def write_text(path: Path, text: str) -> None:
    """Replace the content of `path` by `text` in one step; a reader never sees a part of it, even after a crash."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # on a full disk it would take the room that the next try needs
        raise
    sync(path.parent)  # the rename itself must reach the disk too


def make_folder(path: Path) -> None:
    """Make a folder and those above it, and wait until their names are on the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON in one step. Raises ValueError on NaN and infinities, which JSON cannot hold."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the value of a JSON file. Raises ValueError naming the file, line and column when it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); delete it and run again to rebuild it") from None


def read_jsonl(path: Path) -> Iterator[Record]:
    """Yield the records of a JSON-lines file, none when it does not exist. An unfinished last line is skipped.

    Raises ValueError naming file and line when a finished line is not a JSON object.
    """
    if not path.exists():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}:{number} is not JSON ({error}); repair or delete that line") from None
            if not isinstance(record, dict):
                raise ValueError(f"{path}:{number} must be a JSON object; repair or delete that line")
            yield record


def jsonable(value: Any) -> Any:
    """Convert `value` into plain Python that JSON can hold: tensor scalars become numbers, NaN and infinities None."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if hasattr(value, "item"):
        return jsonable(value.item())
    raise TypeError(f"{type(value).__name__} {value!r} cannot be written as JSON")


@contextmanager
def hold_lock(path: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the lock on the file `path`. It ends with the process, however the process ends; the file stays.

    Raises:
        BlockingIOError: another process holds it, and still does after `wait_s` seconds.
    """
    import fcntl  # not on Windows

    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_s
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.02)
        yield


class JsonlLog:
    """Appends records to a JSON-lines file, each in one piece: a process that is killed tears at most the last line."""

    def __init__(self, path: Path):
        self.path = path
        make_folder(path.parent)
        drop_torn_line(path)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (lives as long as the log)
        sync(path.parent)

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a record, or raise OSError and leave the file as it was: a full disk takes a part of a line."""
        line = json.dumps(jsonable(record), ensure_ascii=False, allow_nan=False)
        left = memoryview(line.encode("utf-8", errors="replace") + b"\n")
        end = os.fstat(self._file.fileno()).st_size
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._file.truncate(end)
            raise OSError(error.errno, f"{error.strerror}: a record was not written", str(self.path)) from error

    def sync(self) -> None:
        """Wait until all records are on the disk, where a loss of power leaves them."""
        os.fsync(self._file.fileno())

    def records(self) -> list[Record]:
        return list(read_jsonl(self.path))

    def keep(self, wanted: Callable[[Record], bool]) -> int:
        """Delete the records that are not `wanted`, in one step. Returns how many it deleted."""
        records = self.records()
        kept = [record for record in records if wanted(record)]
        if len(kept) < len(records):
            self._file.close()
            write_text(self.path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in kept))
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115
        return len(records) - len(kept)

    def close(self) -> None:
        self._file.close()


def drop_torn_line(path: Path) -> None:
    """Cut what follows the last newline: a line that was being written when the process died."""
    if not path.exists():
        return
    with open(path, "rb+") as file:
        end = file.seek(0, os.SEEK_END)
        position = end  # everything from here to `end` belongs to the torn line
        while position > 0:
            start = max(0, position - 65536)
            file.seek(start)
            newline = file.read(position - start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position < end:
            file.truncate(position)
