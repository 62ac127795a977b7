"""Holds the scores of one variant on one data set, at one length, with one seed: a JSON file in `evaluation/`.

Data without lengths has the one length 0.

Schema, written by the evaluators of `benchmarks/` and read by `core/report/summary.py`:

    {"variant": "trained", "data": "niah_multikey_2", "length": 7168, "seed": 0, "n": 3,
     "scores": {"official": [1.0, 0.0, 1.0], "strict": [1.0, 0.0, 0.0]},   one value in [0, 1] per task, same order
     "turns": [8, 8, 8],                      policy calls per task (0 when none was made)
     "document_tokens": [7101, 7098, 7110],   length of the document per task, without the method's own prompts
     "seconds": 12.5,                         wall-clock time of all n tasks together; of an evaluation that was
                                              interrupted, the sum over the sessions that worked on it, each
                                              until its last task ended
     "failures": {"timeout": 1},              tasks with a failed sample by kind; they are among the n, it scores 0
     "model": "runs/tiny/seed-0/checkpoints/final", "sampling": {"temperature": 0.0, "max_new_tokens": 64},
     "predictions": ["7", null, "8"],          the last answer to each task, null when there was none
     "policy_tokens": [9120, 9098, 9131],     prompt and completion tokens of all the task's calls
     "settings": {"data": {...}},             what else the scores follow from: data, method, weights
     "notes": {"concurrency": 16},            other facts: tasks at once, the ids of the tasks, `question_ids` where
                                              several tasks ask one question, such as a prompt at four prices
     "measures": {"calls_search": [2, 0, null]},   any further numbers per task, null when it failed
     "labels": {"kind": ["sum", "sum", "word"]}}   kinds of tasks; reports are split by them

`calls_NAME` is a measure that reports know: how often NAME, a tool or an expert, was called.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass

from core.runs.files import write_json

Name = Annotated[str, Field(min_length=1)]
Score = Annotated[float, Field(ge=0, le=1)]
MODEL_VARIANTS = tuple(
    f"{model}{greedy}" for model in ("trained", "untrained", "rejection", "supervised") for greedy in ("", "-greedy")
)
"""Names the variants that differ in their weights, or in their temperature: greedy is temperature 0. Reports show them
first."""


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
class EvalResult:
    """Holds the scores of one variant on one data set, at one length, with one seed; the module describes the fields.

    Raises:
        ValidationError: a field is wrong, the parts do not fit together, or `scores` lacks `official`.
    """

    variant: Name
    data: Name
    length: NonNegativeInt
    seed: NonNegativeInt
    n: PositiveInt
    scores: Mapping[str, Sequence[Score]]
    turns: Sequence[NonNegativeInt]
    document_tokens: Sequence[NonNegativeInt]
    seconds: NonNegativeFloat
    failures: Mapping[str, NonNegativeInt] = field(default_factory=dict)
    model: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    predictions: Sequence[str | None] | None = None
    policy_tokens: Sequence[NonNegativeInt] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    measures: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        lists: dict[str, Any] = {f"scores.{metric}": values for metric, values in self.scores.items()}
        lists |= {name: getattr(self, name) for name in ("turns", "document_tokens", "predictions", "policy_tokens")}
        for name in ("measures", "labels"):
            lists |= {f"{name}.{key}": values for key, values in getattr(self, name).items()}
        for name, values in lists.items():
            if values is not None and len(values) != self.n:
                raise ValueError(f"{name} must be a list of n={self.n} values")
        if "official" not in self.scores:
            raise ValueError("scores must hold `official`")
        if sum(self.failures.values()) > self.n:
            raise ValueError(f"failures cannot be more than n={self.n}")
        return self

    @property
    def question_ids(self) -> Sequence[str] | None:
        """Return which question each task asks: intervals take the tasks of one together. None without ids."""
        return self.notes.get("question_ids", self.notes.get("task_ids"))

    def save(self, folder: Path) -> Path:
        """Write this result into `folder`; it replaces an earlier one of the same variant, data, length and seed."""
        path = folder / file_name(self.variant, self.data, self.length, self.seed)
        write_json(path, asdict(self))
        return path

    @classmethod
    def load(cls, path: Path) -> EvalResult:
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"])) or "the result"
            raise ValueError(f"{path}: {where}: {problem['msg']}; repair or delete the file") from None


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
