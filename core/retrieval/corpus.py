"""Reads a corpus: a memory-mapped JSON-lines file of passages {"id", "contents"}. Only line ends are kept in memory."""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

_SCAN_BYTES = 1 << 24
_FIX = 'each line is one passage, {"id": "...", "contents": "title\\ntext"}'


class CorpusError(ValueError):
    """Reports a corpus that cannot be served; the message names the file, the line, the field and the fix."""


class Passage(msgspec.Struct, frozen=True):
    id: str | int
    contents: str


_read_passage = msgspec.json.Decoder(Passage).decode


class Corpus:
    """Gives passages by row number, from 0; each is parsed when it is asked for. `sha256` covers the whole file."""

    def __init__(self, path: str | Path):
        self.path = path = Path(path)
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CorpusError(f"{path}: cannot be read ({error.strerror}); give --corpus a JSON-lines file") from error
        except ValueError:
            raise CorpusError(f"{path}: is empty; {_FIX}") from None
        self._bounds, self.sha256 = _scan(self._bytes)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, row: int) -> Passage:
        if not 0 <= row < len(self):
            raise IndexError(row)
        line = self._bytes[self._bounds[row] + 1 : self._bounds[row + 1]]
        try:
            return _read_passage(line)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorpusError(f"{self.path}, line {row + 1}: {error}; {_FIX}") from error


def _scan(data: mmap.mmap) -> tuple[npt.NDArray[np.int64], str]:
    """Return the bounds of lines, int64 [lines + 1], and the SHA-256 of all bytes.

    Line i lies between bounds[i] + 1 and bounds[i + 1].
    """
    digest = hashlib.sha256()
    bounds = [np.array([-1], np.int64)]
    for start in range(0, len(data), _SCAN_BYTES):
        block = data[start : start + _SCAN_BYTES]
        digest.update(block)
        bounds.append(np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + start)
    if data[len(data) - 1] != ord("\n"):
        bounds.append(np.array([len(data)], np.int64))
    return np.concatenate(bounds), digest.hexdigest()
