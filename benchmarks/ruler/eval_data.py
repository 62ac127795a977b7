"""The tasks of an evaluation by length and seed, under a name that tells different data sets apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentic.memagent.tiny.words import KEYS, VALUES
from benchmarks.harness.plan import file_fingerprint
from benchmarks.ruler.generate import generate
from benchmarks.ruler.sample import TaskFamily
from benchmarks.ruler.tasks import make_family
from core.data import DataError, read_tasks
from core.text.tokenizer import encode_text
from core.types import Task

TINY_NEEDLES: Mapping[str, Any] = {
    "num_k": 4,
    "value_type": "words",
    "key_words": KEYS,
    "value_words": VALUES,
    "bare_question": True,
}
"""The needles that the `tiny` preset is trained on: RULER's multikey, with the tiny tokenizer's words."""

_SOURCES = {"essays", "squad", "hotpotqa", "pool"}
"""Options that say where text comes from; a data set is not named after them."""


@dataclass(frozen=True)
class EvalData:
    """Holds a data set. `tasks(length, seed, count)` gives all variants the same tasks; they follow from `settings`."""

    name: str
    lengths: tuple[int, ...]
    settings: Mapping[str, Any]
    tasks: Callable[[int, int, int], list[Task]]
    available: Callable[[int], float] = lambda length: math.inf


def ruler_data(
    task: str,
    options: Mapping[str, Any],
    *,
    tiny: bool,
    lengths: Sequence[int],
    tokenizer: Any,
    split: str = "test",
) -> EvalData:
    """Return generated tasks. `tiny` gives the bare task `niah` TINY_NEEDLES as defaults under `options`.

    Raises:
        ValueError: an unknown task or option, or a file that is missing or broken.
    """
    defaults = TINY_NEEDLES if tiny and task == "niah" else {}
    family = _family(task, defaults, options)
    sources = {name: value for name, value in options.items() if name in _SOURCES}
    plain = _family(task, defaults, sources) if sources.keys() != options.keys() else family

    def tasks(length: int, seed: int, count: int) -> list[Task]:
        return list(
            generate(family, length=length, count=count, tokenizer=tokenizer, seed=seed, split=split, budget="document")
        )

    settings = {
        "task": task,
        "defaults": "tiny" if defaults else "ruler",
        "split": split,
        "limit": "document",
        "options": {name: _describe_option(value) for name, value in sorted(options.items())},
    }
    return EvalData(data_name(family, plain, options), tuple(lengths), settings, tasks)


def data_name(family: TaskFamily, plain: TaskFamily, options: Mapping[str, Any]) -> str:
    """Return the task's name and how `options` make it differ from the `plain` one: `niah`, `niah+other-noise`."""
    changed = [name for name in options if getattr(family, name, None) != getattr(plain, name, None)]
    return "+".join([family.name, *(_label(name, options[name]) for name in sorted(changed))])


def file_data(path: Path, *, tokenizer: Any, lengths: Sequence[int] = ()) -> EvalData:
    """Return the tasks of a file (formats: core.data.tasks), which are the same for every seed.

    A task's length is its metadata's `limit`; a file without has one length, that of its longest document.

    Raises:
        DataError: the file is missing or broken, or has no task of one of `lengths`.
    """
    tasks = read_tasks(path)
    if all(isinstance(task.metadata.get("limit"), int) for task in tasks):
        length_of = {task.task_id: task.metadata["limit"] for task in tasks}
    else:
        longest = max(len(encode_text(tokenizer, task.context)) for task in tasks)
        length_of = dict.fromkeys((task.task_id for task in tasks), longest)
    by_length: dict[int, list[Task]] = {}
    for task in tasks:
        by_length.setdefault(length_of[task.task_id], []).append(task)
    for length in lengths:
        if length not in by_length:
            known = ", ".join(map(str, sorted(by_length)))
            raise DataError(f"{path}: no task of length {length}. Fix: leave --lengths out, or choose from {known}.")
    return EvalData(
        path.stem,
        tuple(lengths or sorted(by_length)),
        {"file": _describe_option(path), "metric": None},
        lambda length, seed, count: by_length[length][:count],
        lambda length: len(by_length[length]),
    )


def _family(task: str, defaults: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call `make_family` with other defaults, which are fields and not files."""
    family: Any = make_family(task, options)
    left = {name: value for name, value in defaults.items() if name not in options}
    return replace(family, **left) if left else family


def _label(name: str, value: Any) -> str:
    if isinstance(value, Path):
        value = value.stem
    if name == "noise":
        return value if value.endswith("noise") else f"{value}-noise"
    return f"{value}-{name}" if name in ("placement", "haystack") else f"{name.replace('_', '-')}={value}"


def _describe_option(value: Any) -> Any:
    """Return an option as results record it: files by name and content."""
    if isinstance(value, list):
        return [_describe_option(item) for item in value]
    return file_fingerprint(value) if isinstance(value, Path) else value
