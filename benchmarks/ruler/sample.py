"""Defines one RULER sample: its random streams, its draft at a given size, and the Task made of it.

Promise: a sample depends on (task, split, seed, index) and its length alone, so any sample can be made without the
others. What is hidden and what is asked stay the same at every length. So do the places of needles, as shares of the
document, but for those between lines under the placement `official`. Documents have another order at each length.

MemAgent's separation: `Task.question` holds instruction and question, `Task.context` the haystack alone.
Its metadata has what RULER puts before and after the haystack, for models that read the whole document at once.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from core.types import Task

Metric = Literal["string_match_all", "string_match_part", "sub_em"]
Budget = Literal["prompt", "document"]


@dataclass(frozen=True, slots=True)
class SampleKey:
    """Names one sample. `length` is the token limit; it takes no part in the random streams."""

    task: str
    split: str
    seed: int
    index: int
    length: int

    def rng(self, stream: str) -> random.Random:
        """Return an independent generator for one purpose, the same on every machine."""
        name = "\x1f".join((self.task, self.split, str(self.seed), str(self.index), stream))
        return random.Random(int.from_bytes(hashlib.sha256(name.encode()).digest()))


@dataclass(frozen=True, slots=True)
class Needle:
    """Describes a planted fact. `start` is the character of the context where its text, or its document, begins."""

    key: str
    value: str
    queried: bool
    start: int


@dataclass(frozen=True, slots=True)
class Draft:
    """Holds a sample's text at one size. RULER puts `before` and `after` around the context in one prompt."""

    context: str
    question: str
    before: str
    after: str
    answer_prefix: str
    answers: tuple[str, ...]
    needles: tuple[Needle, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompt(self) -> str:
        return self.before + self.context + self.after + self.answer_prefix


@dataclass(frozen=True, slots=True)
class Sized:
    """Makes a sample of any size: `build(units)` for `smallest <= units <= largest` (no upper bound if None)."""

    build: Callable[[int], Draft]
    smallest: int = 1
    largest: int | None = None


class TaskFamily(Protocol):
    """Describes a kind of task with its options. `new_tokens` is RULER's token budget for the answer."""

    @property
    def name(self) -> str: ...
    @property
    def metric(self) -> Metric: ...
    @property
    def new_tokens(self) -> int: ...

    def draw(self, key: SampleKey) -> Sized:
        """Fix everything random about one sample, except its size."""
        ...


def to_task(family: TaskFamily, key: SampleKey, draft: Draft, *, units: int, tokens: int, budget: Budget) -> Task:
    """Return the finished Task. `tokens` is its exact length under `budget`."""
    size = max(len(draft.context), 1)
    needles = [
        {"key": n.key, "value": n.value, "queried": n.queried, "depth": round(n.start / size, 6)} for n in draft.needles
    ]
    return Task(
        task_id=f"{key.task}-{key.length}-{key.split}-{key.seed}-{key.index}",
        question=draft.question,
        answers=draft.answers,
        context=draft.context,
        metadata={
            "task": key.task,
            "metric": family.metric,
            "split": key.split,
            "seed": key.seed,
            "index": key.index,
            "limit": key.length,
            "length": tokens,
            "budget": budget,
            "units": units,
            "new_tokens": family.new_tokens,
            "needles": needles,
            "depth": [needle["depth"] for needle in needles if needle["queried"]],
            "answer_prefix": draft.answer_prefix,
            "before": draft.before,
            "after": draft.after,
            **draft.extra,
        },
    )
