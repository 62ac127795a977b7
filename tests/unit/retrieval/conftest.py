"""The corpus of the tests of retrieval."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.retrieval.corpus import Corpus
from tests.unit.retrieval.passages import write_corpus


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(write_corpus(tmp_path / "corpus.jsonl", 200))
