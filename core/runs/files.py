"""This module reads and writes files that survive `kill -9`.

Whole files are written atomically. A JSON-lines file loses at most the line that was being written; a compressed one,
the batch of lines.
"""

from __future__ import annotations

import glob
import gzip
import json
import math
import os
import platform
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

Record = dict[str, Any]

GZIP_LEVEL = 6
"""Compresses ids to two thirds of what level 1 leaves, within milliseconds a step."""


class BrokenFileError(ValueError):
    """Says that a file of a run cannot be read; the message names the file and the fix."""


def write_text(path: Path, text: str) -> None:
    """Replace the content of `path` by `text` in one step; a reader never sees a part of it, even after a crash."""
    write_lines(path, [text])


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Replace the content of `path` by `lines`, which bring their line breaks, in one step as `write_text` does."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # on a full disk it would take the room that the next try needs
        raise
    sync(path.parent)  # the rename itself must reach the disk too


def delete_half_written(folder: Path) -> None:
    """Delete the temporary files of `write_lines` whose processes ran on this machine and have ended."""
    for temporary in folder.glob(f".*.{glob.escape(platform.node())}.*.tmp"):
        try:
            os.kill(int(temporary.name.split(".")[-2]), 0)
        except ProcessLookupError:
            temporary.unlink(missing_ok=True)
        except (ValueError, OverflowError, PermissionError):
            continue  # a name of somebody else's, or a process of another user


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


def read_json(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file. Raises BrokenFileError naming the file, and where it is not JSON the place."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BrokenFileError(f"{path} is not valid JSON ({error}); delete it and run again to rebuild it") from None
    if not isinstance(value, dict):
        raise BrokenFileError(f"{path} must be a JSON object; delete it and run again to rebuild it")
    return value


def read_jsonl(path: Path) -> Iterator[Record]:
    """Yield the records of a JSON-lines file, none when it does not exist. An unfinished last line is skipped.

    Raises BrokenFileError naming file and line when a finished line is not a JSON object.
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
                raise BrokenFileError(f"{path}:{number} is not JSON ({error}); repair or delete that line") from None
            if not isinstance(record, dict):
                raise BrokenFileError(f"{path}:{number} must be a JSON object; repair or delete that line")
            yield record


def append_batch(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Append JSON lines to a gzip file as one member, which a reader gets whole or not at all."""
    lines = (json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False) for record in records)
    text = "".join(f"{line}\n" for line in lines)
    with open(path, "ab", buffering=0) as file:
        append_whole(file, gzip.compress(text.encode("utf-8", errors="replace"), GZIP_LEVEL, mtime=0))


def append_whole(file: FileIO, content: bytes) -> None:
    """Append to an unbuffered file, or raise OSError and leave it as it was: a full disk takes a part of a record."""
    left, end = memoryview(content), os.fstat(file.fileno()).st_size
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        file.truncate(end)
        raise OSError(error.errno, f"{error.strerror}: a record was not written", str(file.name)) from error


def read_batches(path: Path) -> Iterator[tuple[int, list[Record]]]:
    """Yield the records of each member of a gzip file, with the place where the member ends; none without the file.

    An unfinished last member is skipped. Raises BrokenFileError when something else is broken.
    """
    if not path.exists():
        return
    with open(path, "rb") as file:
        # What is appended meanwhile is not read: a writer that goes on first cuts off a torn member, and a reader that
        # has its first half would go on in the middle of another.
        size, end, unread = os.fstat(file.fileno()).st_size, 0, b""

        def read() -> bytes:
            return file.read(min(1 << 20, size - file.tell()))

        while unread or (unread := read()):
            member, parts, length = zlib.decompressobj(wbits=31), [], 0  # 31: with gzip's header and check sum
            while not member.eof:
                if not unread and not (unread := read()):
                    return
                try:
                    parts.append(member.decompress(unread))
                except zlib.error as error:
                    raise BrokenFileError(f"{path} is broken after byte {end} ({error}); cut it there") from None
                length += len(unread) - len(member.unused_data)
                unread = member.unused_data
            end += length
            try:
                yield end, [json.loads(line) for line in b"".join(parts).splitlines()]
            except (ValueError, RecursionError) as error:
                raise BrokenFileError(f"{path} is not JSON before byte {end} ({error}); delete it") from None


def is_newest(path: Path, sources: Iterable[Path]) -> bool:
    """Return whether a file is there and was written after every one of the sources that are there."""
    return path.exists() and all(
        source.stat().st_mtime_ns <= path.stat().st_mtime_ns for source in sources if source.exists()
    )


def truncate(path: Path, length: int) -> None:
    """Cut a file, if it exists, to `length` bytes."""
    if path.exists() and path.stat().st_size > length:
        os.truncate(path, length)


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
def hold_lock(path: Path, wait_s: float = 0.0, held: Exception | None = None) -> Iterator[None]:
    """Hold the lock on the file `path`. It ends with the process, however the process ends; the file stays.

    Raises:
        BlockingIOError, or `held` in its place: another process holds it, and still does after `wait_s` seconds.
    """
    import fcntl  # not on Windows

    make_folder(path.parent)
    deadline = time.monotonic() + wait_s
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise held or error from None
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
        """Append a record, or raise OSError and leave the file as it was."""
        line = json.dumps(jsonable(record), ensure_ascii=False, allow_nan=False)
        append_whole(self._file, line.encode("utf-8", errors="replace") + b"\n")

    def sync(self) -> None:
        """Wait until all records are on the disk, where a loss of power leaves them."""
        os.fsync(self._file.fileno())

    def records(self) -> list[Record]:
        return list(read_jsonl(self.path))

    def keep(self, wanted: Callable[[Record], bool]) -> int:
        """Delete the records that are not `wanted`, in one step. Returns how many it deleted.

        The file is read twice: a log of whole trajectories may be larger than the memory.
        """
        unwanted = sum(not wanted(record) for record in read_jsonl(self.path))
        if unwanted:
            self._file.close()
            kept = (record for record in read_jsonl(self.path) if wanted(record))
            write_lines(self.path, (json.dumps(record, ensure_ascii=False) + "\n" for record in kept))
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115
        return unwanted

    def close(self) -> None:
        self._file.close()


def drop_torn_line(path: Path) -> None:
    """Cut what follows the last newline: a line that was being written when the process died."""
    if path.exists():
        with open(path, "rb") as file:
            truncate(path, sum(len(line) for line in file if line.endswith(b"\n")))
