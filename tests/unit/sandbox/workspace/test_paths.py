"""The files of a record can lie in a folder, or it is said why they cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.sandbox.workspace import find_bad_path


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (["a"], "is a list"),
        ("a", "is a str"),
        ({"": "x"}, "the path ''"),
        ({".": "x"}, "the path '.'"),
        ({"a/": "x"}, "the path 'a/'"),
        ({"./a": "x"}, "the path './a'"),
        ({"a//b": "x"}, "the path 'a//b'"),
        ({"/a": "x"}, "the path '/a'"),
        ({"a/../../b": "x"}, "the path 'a/../../b'"),
        ({"a\0b": "x"}, "the path 'a\\x00b'"),
        ({"a" * 256: "x"}, "at most 255 bytes"),
        ({"a": 1}, "no text at a"),
        ({"a": "x", "a/b/c": "x"}, "a as a file and as a folder"),
        ({"a/b/c": "x", "a/b": "x"}, "a/b as a file and as a folder"),
    ],
)
def test_what_no_folder_can_hold_is_told_with_a_fix(files: Any, told: str) -> None:
    found = find_bad_path(files)
    assert found is not None
    assert told in "; ".join(found)
    assert all(found)


def test_what_is_not_refused_can_be_written(tmp_path: Path) -> None:
    files = {"a": "x", "b/a": "x", "b/..a": "x", ".c/d e\n": "x", "é" * 127: "x"}
    assert find_bad_path(files) is None
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == set(files)
