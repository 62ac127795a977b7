"""Holds the scores of one variant on one data set, at one length, with one seed: a JSON file in `evaluation/`.

Data without lengths has the one length 0.

Schema, written by the evaluators of `benchmarks/` and read by `core/report/summary.py`:

    {"variant": "trained", "data": "niah_multikey_2", "length": 7168, "seed": 0, "n": 3,
     "scores": {"official": [1.0, 0.0, 1.0], "strict": [1.0, 0.0, 0.0]},   one value in [0, 1] per task, same order
     "turns": [8, 8, 8],                      policy calls per task (0 when none was made)
     "document_tokens": [7101, 7098, 7110],   length of the document per task, without the method's own prompts
     "seconds": 12.5,                         wall-clock time of all n tasks together; of an evaluation that was
                                              interrupted, the sum over the sessions that worked on it
     "failures": {"timeout": 1},              failed tasks by kind; they are among the n and score 0
     "model": "runs/tiny/seed-0/checkpoints/final", "sampling": {"temperature": 0.0, "max_new_tokens": 64},
     "predictions": ["7", null, "8"],          the last answer to each task, null when there was none
     "policy_tokens": [9120, 9098, 9131],     prompt and completion tokens of all the task's calls
     "settings": {"data": {...}},             what else the scores follow from: data, method, weights
     "notes": {"concurrency": 16},            other facts: tasks at once, the ids of the tasks
     "measures": {"calls_search": [2, 0, null]},   any further numbers per task, null when it failed
     "labels": {"kind": ["sum", "sum", "word"]}}   kinds of tasks; reports are split by them

`calls_NAME` is a measure that reports know: how often NAME, a tool or an expert, was called.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from core.runs.files import read_json, write_json


@dataclass(frozen=True, slots=True)
class EvalResult:
    """Holds the scores of one variant on one data set, at one length, with one seed; the module describes the fields.

    Raises:
        ValueError: the parts do not fit together, or `scores` lacks `official`.
    """

    variant: str
    data: str
    length: int
    seed: int
    n: int
    scores: Mapping[str, Sequence[float]]
    turns: Sequence[int]
    document_tokens: Sequence[int]
    seconds: float
    failures: Mapping[str, int] = field(default_factory=dict)
    model: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    predictions: Sequence[str | None] | None = None
    policy_tokens: Sequence[int] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    measures: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("length", "seed", "n"):
            _require(_is_count(getattr(self, name)), name, "must be an integer of at least 0")
        for name in ("variant", "data"):
            _require(isinstance(getattr(self, name), str) and getattr(self, name) != "", name, "must be a name")
        _require(self.n >= 1, "n", "must be at least 1")
        _require(isinstance(self.scores, Mapping) and "official" in self.scores, "scores", "must hold `official`")
        for metric, values in self.scores.items():
            _require(_is_list(values, self.n), f"scores.{metric}", f"must be a list of n={self.n} values")
            _require(all(_is_score(value) for value in values), f"scores.{metric}", "must lie between 0 and 1")
        for name in ("turns", "document_tokens", "policy_tokens"):
            values = getattr(self, name)
            if name == "policy_tokens" and values is None:
                continue
            _require(_is_list(values, self.n), name, f"must be a list of n={self.n} values")
            _require(all(_is_count(value) for value in values), name, "must be integers of at least 0")
        if self.predictions is not None:
            fits = _is_list(self.predictions, self.n) and all(isinstance(p, str | None) for p in self.predictions)
            _require(fits, "predictions", f"must be a list of n={self.n} texts or nulls")
        for name, numbers in self.measures.items():
            fits = _is_list(numbers, self.n) and all(value is None or _is_number(value) for value in numbers)
            _require(fits, f"measures.{name}", f"must be a list of n={self.n} numbers or nulls")
        for name, texts in self.labels.items():
            fits = _is_list(texts, self.n) and all(isinstance(text, str) for text in texts)
            _require(fits, f"labels.{name}", f"must be a list of n={self.n} texts")
        _require(_is_number(self.seconds) and self.seconds >= 0, "seconds", "must be a number of at least 0")
        counted = isinstance(self.failures, Mapping) and all(_is_count(count) for count in self.failures.values())
        _require(counted, "failures", "must map a kind to a count")
        _require(sum(self.failures.values()) <= self.n, "failures", f"cannot be more than n={self.n}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: Any) -> EvalResult:
        """Raise ValueError naming the field that is missing, unknown or wrong."""
        _require(isinstance(record, Mapping), "the result", "must be a JSON object")
        known = {item.name for item in fields(cls)}
        optional = {
            item.name for item in fields(cls) if item.default is not MISSING or item.default_factory is not MISSING
        }
        for name in sorted(known - optional - record.keys()):
            raise ValueError(f"evaluation result: {name} is missing")
        for name in sorted(record.keys() - known):
            raise ValueError(f"evaluation result: unknown field {name}; known: {', '.join(sorted(known))}")
        return cls(**record)

    def save(self, folder: Path) -> Path:
        """Write this result into `folder`; it replaces an earlier one of the same variant, data, length and seed."""
        path = folder / file_name(self.variant, self.data, self.length, self.seed)
        write_json(path, self.to_json())
        return path

    @classmethod
    def load(cls, path: Path) -> EvalResult:
        try:
            return cls.from_json(read_json(path))
        except ValueError as error:
            prefix = "" if str(path) in str(error) else f"{path}: "
            raise ValueError(f"{prefix}{error}") from None


def file_name(variant: str, data: str, length: int, seed: int) -> str:
    return f"{_slug(variant)}__{_slug(data)}__{length}__seed-{seed}.json"


def load_evaluations(folder: Path) -> list[EvalResult]:
    """Return all results of a folder, by data, variant, length and seed. Raises ValueError naming a broken file."""
    results = [EvalResult.load(path) for path in folder.glob("*.json")]
    return sorted(results, key=lambda result: (result.data, result.variant, result.length, result.seed))


def _slug(name: str) -> str:
    """Return a part of a file name. A name that had to be changed carries a hash, so no two names share a file."""
    slug = re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("_")[:80]
    return slug if slug == name else f"{slug}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def _require(condition: bool, name: str, expectation: str) -> None:
    if not condition:
        raise ValueError(f"evaluation result: {name} {expectation}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_score(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_list(values: Any, length: int) -> bool:
    return isinstance(values, (list, tuple)) and len(values) == length
