"""A disk that loses power: what would be left of a folder at every point of what a program does to it.

A file holds what it held when it was last synced, and nothing if it never was. A folder has the names that it had when
it was last synced; or, because a disk may write more than it was asked to, those that it has now.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Names = dict[str, int]
"""Maps the names in a folder to the inodes that they stand for."""

CHANGES = ("rename", "replace", "unlink", "rmdir", "mkdir")


class PowerLoss:
    """Follows what reaches the disk of `root`, and calls `check` with each folder that a loss of power could leave."""

    def __init__(self, root: Path, scratch: Path, check: Callable[[Path], None]):
        self.root, self.scratch, self.check = root, scratch, check
        self.points = 0
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, Names] = {}
        for path in (root, *root.rglob("*")):
            self._sync(path)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Check after every sync and every change of a name while the block runs."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", self._follow(os.fsync, synced=True))
            for name in CHANGES:
                patch.setattr(os, name, self._follow(getattr(os, name)))
            yield

    def _follow(self, function: Callable[..., Any], synced: bool = False) -> Callable[..., Any]:
        def followed(*arguments: Any, **options: Any) -> Any:
            result = function(*arguments, **options)
            if synced:
                self._sync(Path(os.readlink(f"/proc/self/fd/{arguments[0]}")))
            self._lose_power()
            return result

        return followed

    def _sync(self, path: Path) -> None:
        inode = path.stat().st_ino  # which may have been that of something else, now deleted
        if path.is_dir():
            self._names[inode] = _list(path)
        else:
            self._names.pop(inode, None)
            self._contents[inode] = path.read_bytes()

    def _lose_power(self) -> None:
        now = {path.stat().st_ino: _list(path) for path in (self.root, *self.root.rglob("*")) if path.is_dir()}
        for names in (self._names, now):
            left = self.scratch / f"point-{self.points}"
            self._restore(self.root.stat().st_ino, names, {*now, *self._names}, left)
            self.points += 1
            with pytest.MonkeyPatch.context() as patch:  # what the check does is no part of the recording
                for name in ("fsync", *CHANGES):
                    patch.setattr(os, name, _ORIGINAL[name])
                self.check(left)

    def _restore(self, folder: int, names: dict[int, Names], folders: set[int], target: Path) -> None:
        _ORIGINAL["mkdir"](target)
        for name, inode in names.get(folder, {}).items():
            if inode in folders:
                self._restore(inode, names, folders, target / name)
            else:
                (target / name).write_bytes(self._contents.get(inode, b""))


_ORIGINAL = {name: getattr(os, name) for name in ("fsync", *CHANGES)}


def _list(folder: Path) -> Names:
    return {entry.name: entry.inode() for entry in os.scandir(folder)}
