"""Indexes of every kind find what exact search finds, and what disagrees with an index is refused by name."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from safetensors.numpy import save_file

from core.retrieval.corpus import Corpus, CorpusError
from core.retrieval.encoders import HashingEncoder
from core.retrieval.index import (
    FlatOptions,
    HnswOptions,
    IndexFileError,
    IndexOptions,
    IvfOptions,
    Retriever,
    build_index,
    move_to_gpu,
)
from core.retrieval.index_folder import open_index
from tests.kit import make_retriever
from tests.unit.retrieval.conftest import ids, no_progress, question, write_corpus

ENCODER = HashingEncoder(512)
ROOT = Path(__file__).resolve().parents[3]


class Counting(HashingEncoder):
    """Counts the passages that it encodes."""

    encoded = 0

    def encode(self, texts: Any, kind: Any) -> Any:
        self.encoded += len(texts)
        return super().encode(texts, kind)


@pytest.mark.parametrize("options", [FlatOptions(), IvfOptions(), IvfOptions(lists=3, probes=3), HnswOptions()])
def test_built_once_then_read_again(
    corpus: Corpus, tmp_path: Path, options: IndexOptions, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("core.retrieval.index._ROWS_AT_ONCE", 50)
    seen: list[tuple[int, int]] = []
    first = open_index(tmp_path / "index", corpus, ENCODER, options, lambda *step: seen.append(step))
    trained_on = {None: 200, 3: 120}[options.lists] if isinstance(options, IvfOptions) else 0
    assert (seen[0], seen[-1]) == ((0, 200 + trained_on), (200 + trained_on, 200 + trained_on))
    assert all(0 < after - before <= 50 for (before, _), (after, _) in pairwise(seen)), "nothing is encoded unseen"
    again = Counting(512)
    second = open_index(tmp_path / "index", corpus, again, options, no_progress)
    assert again.encoded == 1  # the probe alone
    queries = [question(row) for row in range(0, 200, 7)]
    results = [Retriever(corpus, ENCODER, index).search(queries, [5] * len(queries)) for index in (first, second)]
    assert results[0] == results[1]
    assert [ids(hits)[0] for hits in results[0]] == [f"p{row}" for row in range(0, 200, 7)]
    assert not (tmp_path / "index.partial").exists()


def test_options_of_search_may_change_and_those_of_the_build_may_not(corpus: Corpus, tmp_path: Path):
    open_index(tmp_path / "index", corpus, ENCODER, IvfOptions(lists=4, probes=1), no_progress)
    assert open_index(tmp_path / "index", corpus, ENCODER, IvfOptions(lists=4, probes=3), no_progress).nprobe == 3
    with pytest.raises(IndexFileError, match="options"):
        open_index(tmp_path / "index", corpus, ENCODER, IvfOptions(lists=5), no_progress)
    with pytest.raises(IndexFileError, match="options"):
        open_index(tmp_path / "index", corpus, ENCODER, FlatOptions(), no_progress)


def test_what_disagrees_is_refused_naming_both_and_the_fix(corpus: Corpus, tmp_path: Path):
    index = tmp_path / "index"
    open_index(index, corpus, ENCODER, FlatOptions(), no_progress)
    shorter = Corpus(write_corpus(tmp_path / "shorter.jsonl", 199))
    changed = Corpus(write_corpus(tmp_path / "changed.jsonl", 200, note="Since 1999."))

    class Reversed(HashingEncoder):
        def encode(self, texts: Any, kind: Any) -> Any:
            return super().encode([text[::-1] for text in texts], kind)

    for other_corpus, encoder, words in (
        (corpus, HashingEncoder(128), ["dimension", "512", "128", "hashing-512", "hashing-128"]),
        (shorter, ENCODER, ["rows", "200", "199", "corpus.jsonl", "shorter.jsonl"]),
        (changed, ENCODER, ["SHA-256", corpus.sha256, changed.sha256]),
        (corpus, Reversed(512), ["encoder", "cosine"]),
    ):
        with pytest.raises(IndexFileError) as error:
            open_index(index, other_corpus, encoder, FlatOptions(), no_progress)
        for word in [*words, str(index), "delete"]:
            assert word in str(error.value)
        with pytest.raises(IndexFileError, match=re.escape(str(error.value))):  # and by the name of its file
            open_index(index / "index.faiss", other_corpus, encoder, FlatOptions(), no_progress)


def test_damaged_files_and_foreign_folders_are_refused(corpus: Corpus, tmp_path: Path):
    index = tmp_path / "index"
    open_index(index, corpus, ENCODER, FlatOptions(), no_progress)
    file = index / "index.faiss"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(IndexFileError, match=r"bytes of index\.faiss"):
        open_index(index, corpus, ENCODER, FlatOptions(), no_progress)
    file.write_bytes(whole)
    (index / "manifest.json").write_text("{}")
    with pytest.raises(IndexFileError, match="not a manifest"):
        open_index(index, corpus, ENCODER, FlatOptions(), no_progress)
    with pytest.raises(IndexFileError, match="give another --index"):
        open_index(tmp_path, corpus, ENCODER, FlatOptions(), no_progress)
    (tmp_path / "other.faiss").write_text("not an index")
    with pytest.raises(IndexFileError, match="not a FAISS index"):
        open_index(tmp_path / "other.faiss", corpus, ENCODER, FlatOptions(), no_progress)


def test_a_faiss_file_made_elsewhere(corpus: Corpus, tmp_path: Path):
    path = tmp_path / "own.index"

    def write(index: Any, rows: int = 200) -> Any:
        index.add(ENCODER.encode([corpus[row].contents for row in range(rows)], "passage"))
        faiss.write_index(index, str(path))
        return open_index(path, corpus, ENCODER, FlatOptions(), no_progress)

    (hits,) = Retriever(corpus, ENCODER, write(faiss.IndexFlatIP(512))).search([question(17)], [1])
    assert ids(hits) == ["p17"]
    with pytest.raises(IndexFileError, match=r"100 rows.*200 lines"):
        write(faiss.IndexFlatIP(512), rows=100)
    with pytest.raises(IndexFileError, match="inner products"):
        write(faiss.IndexFlatL2(512))
    numbered = faiss.IndexIDMap(faiss.IndexFlatIP(512))
    numbered.add_with_ids(np.eye(200, 512, dtype=np.float32), np.arange(200)[::-1].copy())
    faiss.write_index(numbered, str(path))
    with pytest.raises(IndexFileError, match="an IndexIDMap; build a flat, ivf or hnsw one"):
        open_index(path, corpus, ENCODER, FlatOptions(), no_progress)
    with pytest.raises(IndexFileError, match="--kind hnsw"):
        write(faiss.IndexHNSWFlat(512, 4, faiss.METRIC_INNER_PRODUCT))
    faiss.write_index(faiss.IndexFlatIP(8), str(path))
    with pytest.raises(IndexFileError, match=r"dimension 8.*gives 512"):
        open_index(path, corpus, ENCODER, FlatOptions(), no_progress)


def test_an_encoder_that_was_trained_further_is_another_one(corpus: Corpus, tmp_path: Path):
    class Local(HashingEncoder):
        """It encodes alike whatever its weights are, as after a short training."""

        name = str(tmp_path / "encoder")

        def __init__(self) -> None:
            self.dimension = 512

    def open_with(weight: float | None) -> None:
        if weight is not None:
            save_file({"w": np.full(4, weight, np.float32)}, tmp_path / "encoder" / "model.safetensors")
        open_index(tmp_path / "index", corpus, Local(), FlatOptions(), no_progress)

    (tmp_path / "encoder").mkdir()
    open_with(1.0)
    open_with(1.0)
    with pytest.raises(IndexFileError, match="are not those that the index was built with"):
        open_with(2.0)
    (tmp_path / "encoder" / "model.safetensors").unlink()  # as where the hub's id stands for it
    open_with(None)


def test_a_bad_line_leaves_no_index(tmp_path: Path):
    path = write_corpus(tmp_path / "corpus.jsonl", 50)
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(CorpusError, match="line 51"):
        open_index(tmp_path / "index", Corpus(path), ENCODER, FlatOptions(), no_progress)
    assert not (tmp_path / "index").exists()


def test_more_lists_than_passages(corpus: Corpus):
    with pytest.raises(IndexFileError, match="201 lists for 200 passages"):
        build_index(corpus, ENCODER, IvfOptions(lists=201), no_progress)


def test_a_killed_build_leaves_nothing_that_would_be_used(tmp_path: Path):
    """SIGKILL after the first thousand passages; the next start builds the whole index."""
    path = write_corpus(tmp_path / "corpus.jsonl", 3000)
    code = f"""
import time
from itertools import pairwise
from pathlib import Path
from core.retrieval.corpus import Corpus
from core.retrieval.encoders import HashingEncoder
from core.retrieval.index import FlatOptions
from core.retrieval.index_folder import open_index
def stop(done, total):
    print(done, flush=True)
    time.sleep(60 * (done > 0))
open_index(Path({str(tmp_path / "index")!r}), Corpus(Path({str(path)!r})), HashingEncoder(512), FlatOptions(), stop)
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"0\n", b"1024\n"]
        os.kill(process.pid, signal.SIGKILL)
    assert not (tmp_path / "index").exists()
    assert (tmp_path / "index.partial").is_dir()
    began = time.monotonic()
    assert open_index(tmp_path / "index", Corpus(path), ENCODER, FlatOptions(), no_progress).ntotal == 3000
    assert time.monotonic() - began < 60  # the lock of the killed process is gone
    manifest = json.loads((tmp_path / "index" / "manifest.json").read_text())
    assert (manifest["rows"], manifest["dimension"]) == (3000, 512)


def test_queries_without_a_word_find_nothing_and_k_may_exceed_the_corpus(corpus: Corpus):
    retriever = make_retriever(corpus, ENCODER)
    blank, stop_words, one, all_of_them = retriever.search(["  ", "of the", question(3), "key4"], [3, 3, 1, 1000])
    assert (blank, stop_words) == ([], [])
    assert ids(one) == ["p3"]
    assert len(all_of_them) == 200
    assert np.all(np.diff([hit.score for hit in all_of_them]) <= 0)


@pytest.mark.parametrize(("queries", "topks"), [(["a", "b"], [3]), (["a"], [0]), ("a", [1])])
def test_a_search_of_another_form_is_refused_by_name(queries: Any, topks: list[int], corpus: Corpus):
    retriever = make_retriever(corpus, ENCODER)
    with pytest.raises(ValueError, match="queries: must be a list" if queries == "a" else "topks: needs a number"):
        retriever.search(queries, topks)


def test_without_a_gpu_build_of_faiss_the_gpu_is_refused():
    if hasattr(faiss, "StandardGpuResources"):
        pytest.skip("this FAISS has GPU support")
    with pytest.raises(IndexFileError, match="faiss-gpu"):
        move_to_gpu(faiss.IndexFlatIP(8), "cuda")
