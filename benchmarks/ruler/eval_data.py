"""The tasks of an evaluation by length and seed, under a name that tells different data sets apart."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.plan import file_fingerprint
from benchmarks.ruler.generate import generate
from benchmarks.ruler.sample import Budget, TaskFamily
from benchmarks.ruler.tasks import allowed_options, make_family
from core.data import DataError, read_tasks
from core.text.tokenizer import Tokenizer, encode_text
from core.types import Task
from core.worlds.needles import KEYS, VALUES

TINY_NEEDLES: Mapping[str, Any] = {
    "num_k": 4,
    "value_type": "words",
    "key_words": KEYS,
    "value_words": VALUES,
    "bare_question": True,
}
"""The needles that the `tiny` preset is trained on: RULER's multikey, with the tiny tokenizer's words."""

OFFICIAL_QUESTIONS = 128
"""Counts the questions of each of MemAgent's evaluation files."""

LENGTH_IS: Mapping[Budget, str] = {"document": "tokens of the document", "prompt": "tokens of prompt and answer"}
OFFICIAL_FILES: Mapping[str, Mapping[str, str]] = {
    "hqa": {"questions": "MemAgent's eval_N.json, filtered", "length": "documents", "places": "official"},
    "ruler": {"questions": "MemAgent's eval_TASK_N.json", "length": LENGTH_IS["prompt"], "places": "official"},
}
"""Describes MemAgent's files: what they ask, what their lengths count, and where gold documents and needles are."""

_SOURCES = {"essays", "squad", "hotpotqa", "pool"}
"""Options that say where text comes from; a data set is not named after them."""


@dataclass(frozen=True)
class EvalData:
    """Holds a data set. `tasks(length, seed, count)` gives all variants the same tasks; they follow from `settings`."""

    name: str
    lengths: tuple[int, ...]
    settings: Mapping[str, Any]
    tasks: Callable[[int, int, int], Iterable[Task]]
    available: Callable[[int], float] = lambda length: math.inf
    protocol: Mapping[str, Any] = field(default_factory=dict)
    """Says how the tasks come about, in the words of benchmarks/ruler/published.py."""
    file: Callable[[int], Path] | None = None
    """Returns the file of a length, where every length has its own."""

    def settings_at(self, length: int) -> dict[str, Any]:
        """Return what the tasks of a length follow from."""
        return {**self.settings, **({"file": file_fingerprint(self.file(length))} if self.file else {})}


def ruler_data(
    task: str,
    options: Mapping[str, Any],
    *,
    tiny: bool,
    lengths: Sequence[int],
    tokenizer: Tokenizer,
    split: str = "test",
    budget: Budget = "document",
) -> EvalData:
    """Return generated tasks. `tiny` gives the bare task `niah` TINY_NEEDLES as defaults under `options`.

    `budget` says what a length limits (benchmarks/ruler/generate.py). With `prompt` needles go where RULER puts them
    and the name begins with `ruler-`.

    Raises:
        ValueError: an unknown task or option, or a file that is missing or broken.
    """
    needles = TINY_NEEDLES if tiny and task == "niah" else {}
    places = {"placement": "official"} if budget == "prompt" and "placement" in allowed_options(task) else {}
    defaults = {**needles, **places}
    family = _family(task, defaults, options)
    sources = {name: value for name, value in options.items() if name in _SOURCES}
    plain = _family(task, defaults, sources) if sources.keys() != options.keys() else family

    def tasks(length: int, seed: int, count: int) -> Iterator[Task]:
        return generate(family, length=length, count=count, tokenizer=tokenizer, seed=seed, split=split, budget=budget)

    settings = {
        "task": task,
        "defaults": "tiny" if needles else "ruler",
        "split": split,
        "limit": budget,
        "options": {name: _describe_option(value) for name, value in sorted(options.items())},
    }
    name = data_name(family, plain, options)
    protocol = {
        "questions": "HotpotQA's in their order" if task == "hqa" else "drawn by our generators",
        "length": LENGTH_IS[budget],
        "places": getattr(family, "placement", "official"),
    }
    return EvalData(f"ruler-{name}" if budget == "prompt" else name, tuple(lengths), settings, tasks, protocol=protocol)


def official_data(folder: Path, task: str, lengths: Sequence[int] = ()) -> EvalData:
    """Return MemAgent's own evaluation files: eval_DOCUMENTS.json for `hqa`, eval_TASK_LENGTH.json for other tasks.

    The number in a name is the length. Question and document lose the white space around them, as in its evaluation.

    Raises:
        DataError: the folder has no such file, or none of one of `lengths`.
    """
    stem = "eval" if task == "hqa" else f"eval_{task}"
    found = (re.fullmatch(rf"{stem}_(\d+)\.json", path.name) for path in folder.glob("*.json"))
    files = {int(match[1]): folder / match[0] for match in found if match}
    if not files or not set(lengths) <= files.keys():
        known = ", ".join(map(str, sorted(files))) or "none"
        raise DataError(
            f"{folder}: no {stem}_N.json for every length asked; there are: {known}. Fix: get the files of "
            f"BytedTsinghua-SIA/hotpotqa, or build them with MemAgent's taskutils/memory_data."
        )

    def tasks(length: int, seed: int, count: int) -> list[Task]:
        read = read_tasks(files[length], limit=count)
        if len(read) < count:
            raise DataError(f"{files[length]}: {len(read)} questions, and {count} are wanted. Fix: give --tasks.")
        return [replace(task, question=task.question.strip(), context=task.context.strip()) for task in read]

    return EvalData(
        f"ruler-{task}",
        tuple(lengths or sorted(files)),
        {"task": task, "metric": None},
        tasks,
        available=lambda length: OFFICIAL_QUESTIONS,
        protocol=OFFICIAL_FILES["hqa" if task == "hqa" else "ruler"],
        file=files.__getitem__,
    )


def data_name(family: TaskFamily, plain: TaskFamily, options: Mapping[str, Any]) -> str:
    """Return the task's name and how `options` make it differ from the `plain` one: `niah`, `niah+other-noise`."""
    changed = [name for name in options if getattr(family, name, None) != getattr(plain, name, None)]
    return "+".join([family.name, *(_label(name, options[name]) for name in sorted(changed))])


def file_data(path: Path, *, tokenizer: Tokenizer, lengths: Sequence[int] = ()) -> EvalData:
    """Return the tasks of a file (formats: core.data.tasks), which are the same for every seed.

    A task's length is its metadata's `limit`; a file without has one length, that of its longest document.

    Raises:
        DataError: the file is missing or broken, or has no task of one of `lengths`.
    """
    tasks = read_tasks(path, tell=True, distinct=True)
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
        protocol={"questions": path.name, "length": "as in the file", "places": "as in the file"},
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
