"""Builds, loads and searches a FAISS index of a corpus. Scores are inner products of unit vectors, that is cosines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np
from pydantic import BaseModel, ConfigDict, PositiveInt

from core.retrieval.corpus import Corpus, Passage
from core.retrieval.encoders import Encoder, Vectors

_ROWS_AT_ONCE = 1024
_TRAIN_ROWS_PER_LIST = 40  # FAISS warns below 39

Progress = Callable[[int, int], None]
"""Takes (passages encoded, passages to encode) and shows the progress; what an IVF is trained on is encoded twice."""


class IndexFileError(ValueError):
    """Reports an index that cannot be used or built; the message names both sides and the fix."""


class _IndexOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FlatOptions(_IndexOptions):
    """Compares every passage: exact."""

    kind: Literal["flat"] = "flat"


class IvfOptions(_IndexOptions):
    """Sorts passages into lists by nearest centre; a query looks into `probes` of them."""

    kind: Literal["ivf"] = "ivf"
    lists: PositiveInt | None = None
    """Sets the number of lists; None is the power of two nearest to 4 x the root of the number of passages, but at most
    one for 40 passages."""
    probes: PositiveInt = 32


class HnswOptions(_IndexOptions):
    """Connects neighbours in a graph, which a search descends."""

    kind: Literal["hnsw"] = "hnsw"
    neighbors: PositiveInt = 32
    ef_construction: PositiveInt = 200
    ef_search: PositiveInt = 128


IndexOptions = FlatOptions | IvfOptions | HnswOptions
KINDS: dict[str, type[IndexOptions]] = {"flat": FlatOptions, "ivf": IvfOptions, "hnsw": HnswOptions}


def move_to_gpu(index: Any, device: str) -> Any:
    """Move the index to GPU N for `cuda:N`, else in shards to all GPUs; in float16. HNSW has no GPU form.

    Raises:
        IndexFileError: this FAISS is built without GPU support, or the index cannot go there.
    """
    if not hasattr(faiss, "StandardGpuResources"):
        raise IndexFileError("this FAISS has no GPU support: install faiss-gpu, or leave out --index-device")
    options = faiss.GpuMultipleClonerOptions()
    options.shard = options.useFloat16 = True
    gpus = [int(device.partition(":")[2])] if ":" in device else None
    try:
        return faiss.index_cpu_to_gpus_list(index, options, gpus)
    except RuntimeError as error:
        raise IndexFileError(f"the index cannot go to {device} ({error}); leave out --index-device") from error


def build_index(corpus: Corpus, encoder: Encoder, options: IndexOptions, progress: Progress) -> Any:
    """Build the FAISS index of all passages, in memory."""
    rows = len(corpus)
    index = _make_empty(encoder.dimension, rows, options)
    wanted = min(rows, _TRAIN_ROWS_PER_LIST * index.nlist) if isinstance(options, IvfOptions) else 0
    done, total = 0, wanted + rows
    progress(done, total)  # of a large model the first rows take minutes

    def encode(chosen: Sequence[int]) -> Iterator[Vectors]:
        nonlocal done
        for start in range(0, len(chosen), _ROWS_AT_ONCE):
            texts = [corpus[row].contents for row in chosen[start : start + _ROWS_AT_ONCE]]
            yield encoder.encode(texts, "passage")
            done += len(texts)
            progress(done, total)

    if wanted:
        # rows of the corpus, drawn without replacement, in the order of the file
        drawn = np.sort(np.random.default_rng(0).choice(rows, wanted, replace=False))
        index.train(np.concatenate([*encode(drawn.tolist())]))
    for vectors in encode(range(rows)):
        index.add(vectors)
    return index


def _make_empty(dimension: int, rows: int, options: IndexOptions) -> Any:
    if isinstance(options, HnswOptions):
        index: Any = faiss.IndexHNSWFlat(dimension, options.neighbors, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = options.ef_construction
        index.hnsw.efSearch = options.ef_search
        return index
    if isinstance(options, IvfOptions):
        nearest = 2 ** round(math.log2(4 * math.sqrt(rows)))
        lists = options.lists or max(1, min(nearest, rows // _TRAIN_ROWS_PER_LIST))
        if lists > rows:
            raise IndexFileError(f"lists: {lists} lists for {rows} passages; set fewer, or leave it out")
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dimension), dimension, lists, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = options.probes
        return index
    return faiss.IndexFlatIP(dimension)


def load_index(path: Path, corpus: Corpus, encoder: Encoder, options: IndexOptions) -> Any:
    """Map the index of a FAISS file into memory: it is ready at once, read as it is used, and shared by processes.

    Raises:
        IndexFileError: it is damaged, or its dimension, rows, metric or kind do not fit the other arguments.
    """
    try:
        index: Any = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise IndexFileError(f"{path}: not a FAISS index, or a damaged one ({error})") from error
    if index.d != encoder.dimension:
        raise IndexFileError(
            f"{path}: vectors of dimension {index.d}, but encoder {encoder.name} gives {encoder.dimension}; "
            "give --encoder the one that it was built with"
        )
    if index.ntotal != len(corpus):
        raise IndexFileError(
            f"{path}: {index.ntotal} rows, but {corpus.path} has {len(corpus)} lines; give --corpus the file that it "
            "was built from"
        )
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise IndexFileError(f"{path}: not an index of inner products; build it with METRIC_INNER_PRODUCT")
    exact = (faiss.IndexFlat, faiss.IndexScalarQuantizer)  # the second holds the rows in less precision
    classes: dict[str, Any] = {"flat": exact, "ivf": faiss.IndexIVF, "hnsw": faiss.IndexHNSW}
    kind = next((kind for kind, known in classes.items() if isinstance(index, known)), None)
    if kind is None:  # such as one of codes, or an IndexIDMap, whose ids are no lines of the corpus
        raise IndexFileError(f"{path}: an {type(index).__name__}; build a flat, ivf or hnsw one, without other steps")
    if kind != options.kind:
        raise IndexFileError(f"{path}: an index of kind {kind}, not {options.kind}; give --kind {kind}")
    if isinstance(options, IvfOptions):
        index.nprobe = options.probes
    if isinstance(options, HnswOptions):
        index.hnsw.efSearch = options.ef_search
    return index


@dataclass(frozen=True, slots=True)
class ScoredPassage:
    passage: Passage
    score: float


class Retriever:
    def __init__(self, corpus: Corpus, encoder: Encoder, index: Any):
        self.corpus = corpus
        self.encoder = encoder
        self.index = index

    def search(self, queries: Sequence[str], topks: Sequence[int]) -> list[list[ScoredPassage]]:
        """Return the best passages of each query, best first, at most its top k; none where nothing can be encoded.

        Only queries with the same k are searched together, because an approximate index may find other passages for
        another k. So the queries beside a query change its scores by rounding alone, and its passages where scores tie.

        Raises:
            ValueError: `topks` has not one number of at least 1 for each query, or `queries` is one text.
        """
        if isinstance(queries, str):
            raise ValueError(f"queries: must be a list of texts, is {queries!r:.60}; write [query]")
        if len(topks) != len(queries) or any(k < 1 for k in topks):
            raise ValueError(f"topks: needs a number from 1 for each of {len(queries)} queries, is {topks!r:.60}")
        vectors = self.encoder.encode(queries, "query")
        found: list[list[ScoredPassage]] = [[] for _ in queries]
        nonempty = [row for row, query in enumerate(queries) if query.strip() and vectors[row].any()]
        for k in {topks[row] for row in nonempty}:
            rows = [row for row in nonempty if topks[row] == k]
            scores, ids = self.index.search(np.ascontiguousarray(vectors[rows]), min(k, len(self.corpus)))
            for row, row_scores, row_ids in zip(rows, scores.tolist(), ids.tolist(), strict=True):
                # FAISS fills up with -1 where it finds fewer.
                pairs = zip(row_ids, row_scores, strict=True)
                found[row] = [ScoredPassage(self.corpus[id_], score) for id_, score in pairs if id_ >= 0]
        return found
