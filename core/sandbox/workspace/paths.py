"""Checks the files of a record, path -> text, before they are written into a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any


def find_bad_path(files: Any) -> tuple[str, str] | None:
    """Return what is wrong with the files of a record, and the fix; None if they can lie in a folder."""
    if not isinstance(files, Mapping):
        return f"is a {type(files).__name__}", "give the files as path -> text"
    for path, text in files.items():
        plain = PurePosixPath(path)
        if path != str(plain) or not plain.parts or plain.is_absolute() or {"..", "\0"} & {*plain.parts, *path}:
            return f"has the path {path!r:.99}", "give plain paths inside of the folder, such as a/b.py"
        if any(len(part.encode(errors="replace")) > 255 for part in plain.parts):
            return f"has the path {path!r:.99}", "give names of at most 255 bytes"
        if not isinstance(text, str):
            return f"has no text at {path}", "give the file's text"
        if both := [str(folder) for folder in plain.parents if str(folder) in files]:
            return f"has {both[0]} as a file and as a folder", "rename one of them"
    return None
