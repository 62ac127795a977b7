"""Rows by offset from the mapped file, and errors that name file, line, field and fix."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.retrieval import corpus as module
from core.retrieval.corpus import Corpus, CorpusError, Passage

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(TEXT, min_size=1, max_size=20), last_newline=st.booleans(), ascii_only=st.booleans())
def test_every_row_comes_back_whatever_its_text(texts, last_newline, ascii_only, tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "c.jsonl"
    lines = [json.dumps({"id": row, "contents": text}, ensure_ascii=ascii_only) for row, text in enumerate(texts)]
    path.write_text("\n".join(lines) + "\n" * last_newline, encoding="utf-8", newline="")
    corpus = Corpus(path)
    assert [corpus[row] for row in range(len(corpus))] == [Passage(row, text) for row, text in enumerate(texts)]
    assert corpus.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_path_may_be_text(tmp_path: Path):
    (tmp_path / "c.jsonl").write_text('{"id": 1, "contents": "x"}')
    assert Corpus(str(tmp_path / "c.jsonl")).path == tmp_path / "c.jsonl"


def test_lines_across_blocks_of_the_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_SCAN_BYTES", 7)
    path = tmp_path / "c.jsonl"
    path.write_text("".join(f'{{"id": "{row}", "contents": "{"x" * row}"}}\n' for row in range(9)))
    corpus = Corpus(path)
    assert [corpus[row].contents for row in range(len(corpus))] == ["x" * row for row in range(9)]
    with pytest.raises(IndexError):
        corpus[9]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", ["line 2"]),
        ("{", ["line 2"]),
        ("[1]", ["line 2", "Expected `object`"]),
        ('{"contents": "x"}', ["line 2", "field `id`"]),
        ('{"id": true, "contents": "x"}', ["line 2", "$.id"]),
        ('{"id": 1, "text": "x"}', ["line 2", "field `contents`"]),
        ('{"id": 1, "contents": null}', ["line 2", "$.contents"]),
        ('{"id": 1, "contents": "\\ud800"}', ["line 2"]),
        ('{"id": 1, "contents": "\udcff"}', ["line 2"]),  # a byte that is no UTF-8
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: list[str]):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"id": "1", "contents": "good"}\n' + line + "\n", errors="surrogateescape")
    with pytest.raises(CorpusError) as error:
        Corpus(path)[1]
    for word in [*words, str(path), '{"id": "...", "contents": "title\\ntext"}']:
        assert word in str(error.value)


def test_absent_and_empty_files(tmp_path: Path):
    with pytest.raises(CorpusError, match="cannot be read"):
        Corpus(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(CorpusError, match="is empty"):
        Corpus(tmp_path / "empty.jsonl")
