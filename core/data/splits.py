"""This module splits tasks by the hash of their questions, and keeps what is tested out of what is trained.

Two questions are the same if their words are, without case and marks. They overlap if they share 13 words in a row: the
rule of GPT-3's paper (arXiv 2005.14165, appendix C), which also leaves out runs that more than 10 texts have, such as
a fixed instruction. In a script without spaces two characters count as a word. It finds copies, no paraphrases.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Literal

from core.data.files import DataError
from core.rewards.answers import SPACELESS_CHARACTER, WORD
from core.types import Task

Split = Literal["train", "eval", "test"]
RUN_WORDS, COMMON = 13, 10


def draw_place(text: str, places: int) -> int:
    """Return one of so many places, from 0, by the first byte of a text's sha256."""
    return hashlib.sha256(text.encode()).digest()[0] % places


def draw_split(question: str) -> Split:
    """Return the split of a question: one of 16 is for eval, two are for test."""
    place = draw_place(question, 16)
    return "eval" if place == 0 else "test" if place < 3 else "train"


def find_words(text: str) -> tuple[str, ...]:
    return tuple(WORD.findall(text.lower()))


def find_runs(words: tuple[str, ...]) -> set[tuple[str, ...]]:
    """Return all runs of RUN_WORDS words, and the whole."""
    sizes = [*accumulate((1 if SPACELESS_CHARACTER.match(word) else 2 for word in words), initial=0)]
    ends = (bisect_left(sizes, size + 2 * RUN_WORDS) for size in sizes)  # beyond the end where too few follow
    return {words, *(words[start:end] for start, end in enumerate(ends) if end <= len(words))}


def drop_overlaps(splits: Mapping[Split, list[Task]], told: Counter[str]) -> dict[Split, list[Task]]:
    """Drop the training tasks that overlap with eval or test, and those of eval that overlap with test; test stays."""
    questions = {find_words(task.question) for tasks in splits.values() for task in tasks}
    counts = Counter(run for question in questions for run in find_runs(question))
    kept: dict[Split, list[Task]] = {"train": [], "eval": [], "test": splits["test"]}
    seen: set[tuple[str, ...]] = set()

    def overlaps(question: tuple[str, ...]) -> bool:
        return question in seen or any(counts[run] <= COMMON and run in seen for run in find_runs(question))

    for split in ("test", "eval", "train"):
        if split != "test":
            kept[split] = [task for task in splits[split] if not overlaps(find_words(task.question))]
            if dropped := len(splits[split]) - len(kept[split]):
                told[f"dropped from {split}: the question overlaps with one that is tested"] += dropped
        seen.update(run for task in kept[split] for run in find_runs(find_words(task.question)))
    return kept


def refuse_shown(tasks: Sequence[Task], shown: Path) -> None:
    """Refuse a few-shot text that holds one of the questions, or overlaps with it.

    Raises:
        DataError: it does.
    """
    words = find_words(shown.read_text(encoding="utf-8"))
    text, runs = f" {' '.join(words)} ", find_runs(words)
    found = [
        task
        for task in tasks
        if f" {' '.join(find_words(task.question))} " in text or find_runs(find_words(task.question)) & runs
    ]
    if found:
        raise DataError(
            f"{shown}: holds or overlaps with {len(found)} of the questions that are tested, such as "
            f"{found[0].task_id}: {found[0].question!r:.80}. Fix: take examples from the training set."
        )
