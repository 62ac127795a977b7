"""A small corpus of made-up passages, of which each has a word of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from core.retrieval.corpus import Corpus

TOPICS = "river mountain engine violin glacier harbour orchard lantern".split()


def write_corpus(path: Path, rows: int, note: str = "") -> Path:
    """Passage i: its topic, the word `keyI`, and `note`."""
    lines = [
        {"id": f"p{row}", "contents": f"Title {row}\nThe {TOPICS[row % 8]} of key{row} is known. {note}"}
        for row in range(rows)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def question(row: int) -> str:
    """About passage `row` alone; several words, because two words may fall on one dimension."""
    return f"Title {row}: is the {TOPICS[row % 8]} of key{row} known?"


def no_progress(done: int, total: int) -> None:
    assert done <= total


def ids(hits: Sequence[object]) -> list[str]:
    return [hit.passage.id for hit in hits]  # type: ignore[attr-defined]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(write_corpus(tmp_path / "corpus.jsonl", 200))
