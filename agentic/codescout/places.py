"""Compares the places that a policy names with those that the gold patch touches: the reward of CodeScout.

Paper: arXiv 2603.17829, the sum of the F1 of files, modules and functions. The details are those of
src/rewards/file_localization of OpenHands/codescout: a module is a class or a function outside of any class, a function
is one of these or `Class.method`, and a level of which the gold patch has nothing scores 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CodePlaces:
    """Holds what must change: paths of files; modules as `a/b.py:Class`; functions as `a/b.py:Class.method`."""

    files: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()


def read_answer(locations: object) -> CodePlaces | None:
    """Read the argument of the call that answers; None if an entry is no object, has no file, or another type.

    White space around a name is dropped, which the released code keeps. A name that is empty or null counts as missing.
    """
    if not isinstance(locations, Sequence) or isinstance(locations, str):
        return None
    files, modules, functions = set[str](), set[str](), set[str]()
    for entry in locations:
        if not isinstance(entry, Mapping):
            return None
        names = [entry.get(key) or "" for key in ("file", "class_name", "function_name")]
        if not all(isinstance(name, str) for name in names):
            return None
        path, owner, function = (name.strip() for name in names)
        if not path:
            return None
        files.add(path)
        if owner or function:
            modules.add(f"{path}:{owner or function}")
        if function:
            functions.add(f"{path}:{owner}.{function}" if owner else f"{path}:{function}")
    return CodePlaces(frozenset(files), frozenset(modules), frozenset(functions))


def read_gold(changes: Sequence[Mapping[str, Any]]) -> CodePlaces:
    """Read `file_changes` of a record: each has `file`, and `changes` with `edited_modules` and `edited_entities`.

    Raises:
        ValueError: an entry has another form, or there is no file.
    """
    try:
        files = frozenset(str(change["file"]) for change in changes)
        modules = [name for change in changes for name in change["changes"].get("edited_modules") or ()]
        functions = [name for change in changes for name in change["changes"].get("edited_entities") or ()]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"has another form than file and changes ({error!r})") from error
    if not files:
        raise ValueError("names no file")
    return CodePlaces(files, frozenset(map(str, modules)), frozenset(map(str, functions)))


def score(answer: CodePlaces, gold: CodePlaces) -> dict[str, float]:
    """Return the F1 of an answer at each level, by the names of the metrics."""
    return {
        "file_f1": measure_f1(answer.files, gold.files),
        "module_f1": measure_f1(answer.modules, gold.modules),
        "function_f1": measure_f1(answer.functions, gold.functions),
    }


def measure_f1(named: Set[str], right: Set[str]) -> float:
    """Return 2 PR / (P + R), which is 2 hits / (named + right); 0 if nothing is right."""
    hits = len(named & right)
    return 2 * hits / (len(named) + len(right)) if hits else 0.0
