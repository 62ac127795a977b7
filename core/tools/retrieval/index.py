"""FAISS indexes of a corpus: kinds and options, build, load. Inner products of vectors of length 1, so cosines."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np
from pydantic import BaseModel, ConfigDict, PositiveInt

from core.tools.retrieval.base import Encoder, Vectors
from core.tools.retrieval.corpus import Corpus

_ROWS_AT_ONCE = 1024
_TRAIN_ROWS_PER_LIST = 40  # FAISS warns below 39

Progress = Callable[[int, int], None]
"""(passages done, passages in all)"""


class IndexFileError(ValueError):
    """An index that cannot be used or built; the message names both sides and the fix."""


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Flat(_Options):
    """Every passage is compared: exact."""

    kind: Literal["flat"] = "flat"


class Ivf(_Options):
    """Passages in lists by nearest centre; a query looks into `probes` of them."""

    kind: Literal["ivf"] = "ivf"
    lists: PositiveInt | None = None
    """None: the power of two nearest to 4 x the root of the number of passages."""
    probes: PositiveInt = 32

    def lists_for(self, rows: int) -> int:
        wanted = self.lists or 2 ** round(math.log2(4 * math.sqrt(rows)))
        return wanted if self.lists else max(1, min(wanted, rows // _TRAIN_ROWS_PER_LIST))


class Hnsw(_Options):
    """A graph of neighbours, searched by descent."""

    kind: Literal["hnsw"] = "hnsw"
    neighbors: PositiveInt = 32
    ef_construction: PositiveInt = 200
    ef_search: PositiveInt = 128


IndexOptions = Flat | Ivf | Hnsw
KINDS: dict[str, type[IndexOptions]] = {"flat": Flat, "ivf": Ivf, "hnsw": Hnsw}


def to_gpu(index: Any, device: str) -> Any:
    """The index on GPU N for `cuda:N`, else in shards over all; float16. HNSW has no GPU form.

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


def build(corpus: Corpus, encoder: Encoder, options: IndexOptions, progress: Progress) -> Any:
    """The FAISS index of all passages, in memory."""
    rows = len(corpus)
    index = _empty(encoder.dimension, rows, options)
    if isinstance(options, Ivf):
        wanted = min(rows, _TRAIN_ROWS_PER_LIST * index.nlist)
        chosen = np.sort(np.random.default_rng(0).choice(rows, wanted, replace=False))
        index.train(_encode(corpus, encoder, chosen.tolist()))
    for start in range(0, rows, _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, rows)
        index.add(_encode(corpus, encoder, range(start, stop)))
        progress(stop, rows)
    return index


def _encode(corpus: Corpus, encoder: Encoder, rows: range | list[int]) -> Vectors:
    return encoder.encode([corpus[row].contents for row in rows], "passage")


def _empty(dimension: int, rows: int, options: IndexOptions) -> Any:
    if isinstance(options, Hnsw):
        index: Any = faiss.IndexHNSWFlat(dimension, options.neighbors, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = options.ef_construction
        index.hnsw.efSearch = options.ef_search
        return index
    if isinstance(options, Ivf):
        lists = options.lists_for(rows)
        if lists > rows:
            raise IndexFileError(f"lists: {lists} lists for {rows} passages; set fewer, or leave it out")
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dimension), dimension, lists, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = options.probes
        return index
    return faiss.IndexFlatIP(dimension)


def load(path: Path, corpus: Corpus, encoder: Encoder, options: IndexOptions) -> Any:
    """The index in a FAISS file, memory-mapped: ready at once, read as it is used, and shared by processes.

    Raises:
        IndexFileError: damaged, or its dimension, rows, metric or kind are not those of the others.
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
    kind = "hnsw" if isinstance(index, faiss.IndexHNSW) else "ivf" if isinstance(index, faiss.IndexIVF) else "flat"
    if kind != options.kind:
        raise IndexFileError(f"{path}: an index of kind {kind}, not {options.kind}; give --kind {kind}")
    if isinstance(options, Ivf):
        index.nprobe = options.probes
    if isinstance(options, Hnsw):
        index.hnsw.efSearch = options.ef_search
    return index
