"""Keeps an index in a folder: it is built once, and used again only with the corpus, encoder and options of the build.

The folder holds `index.faiss` and `manifest.json`. It is written under another name and renamed when it is complete, so
a build that is killed leaves no index.
"""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

import faiss
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.retrieval.corpus import Corpus
from core.retrieval.encoders import Encoder, Vectors
from core.retrieval.index import FlatOptions, IndexFileError, IndexOptions, Progress, Retriever, build_index, load_index
from core.runs.files import hold_lock
from core.runs.inputs import describe_weights

INDEX_FILE, MANIFEST_FILE = "index.faiss", "manifest.json"
_PROBE = "The river that runs through the old town of Bamberg in Bavaria is called Regnitz."
_SAME_ENCODER = 0.99  # cosine; half precision or another device keeps 0.999, other weights lose nearly all
_SEARCH_OPTIONS = {"probes", "ef_search"}
"""Names the options that may differ from the build's."""


class IndexManifest(BaseModel):
    """Records what an index was built from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    options: Annotated[IndexOptions, Field(discriminator="kind")]
    encoder: str
    dimension: int
    rows: int
    corpus: str
    corpus_sha256: str
    probe: list[float]
    """Holds the encoder's vector of a fixed text; it reveals other weights or prefixes under the same name."""
    encoder_form: str = ""
    """Says how the encoder reads a passage; two families may give the probe nearly equal vectors. "" does not say."""
    encoder_weights: str = ""
    """Holds the hashes of a local encoder's safetensors: a short training hardly moves the vector of one text."""
    index_bytes: int
    faiss: str


def open_retriever(
    corpus: Corpus,
    encoder: Encoder,
    options: IndexOptions | None = None,
    *,
    path: Path | None = None,
    progress: Progress = lambda done, rows: None,
) -> Retriever:
    """Open a corpus for searching: its index is built the first time and used again afterwards.

    The index lies at `path`, or without it beside the corpus. Raises what `open_index` raises.
    """
    options = options or FlatOptions()
    path = path or corpus.path.with_name(f"{corpus.path.name}.{Path(encoder.name).name}.{options.kind}")
    return Retriever(corpus, encoder, open_index(path, corpus, encoder, options, progress))


def open_index(path: Path, corpus: Corpus, encoder: Encoder, options: IndexOptions, progress: Progress) -> Any:
    """Open the index in the folder `path`, and build it first if the folder is absent or empty; or open a FAISS file.

    A file has no manifest, so only its dimension, number of rows, metric and kind are checked.

    Raises:
        IndexFileError: it disagrees with corpus, encoder or options, or is damaged.
        CorpusError: a line of the corpus is malformed.
    """
    if path.name == INDEX_FILE and path.with_name(MANIFEST_FILE).is_file():
        path = path.parent  # one of ours, whose manifest says more
    if path.is_file():
        return load_index(path, corpus, encoder, options)
    if not _is_built(path):
        _build_folder(path, corpus, encoder, options, progress)
    _check_manifest(path, corpus, encoder, options)
    return load_index(path / INDEX_FILE, corpus, encoder, options)


def _is_built(folder: Path) -> bool:
    if not folder.is_dir() or not any(folder.iterdir()):
        return False
    if not (folder / MANIFEST_FILE).is_file():
        raise IndexFileError(f"{folder}: holds files, but no {MANIFEST_FILE}: not an index; give another --index")
    return True


def _build_folder(folder: Path, corpus: Corpus, encoder: Encoder, options: IndexOptions, progress: Progress) -> None:
    """Build under a lock: another process that wants the same folder waits."""
    partial = folder.with_name(f"{folder.name}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(folder.with_name(f"{folder.name}.lock"), wait_s=math.inf):
            if _is_built(folder):
                return
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            _write(build_index(corpus, encoder, options, progress), partial / INDEX_FILE)
            manifest = IndexManifest(
                options=options,
                encoder=encoder.name,
                dimension=encoder.dimension,
                rows=len(corpus),
                corpus=str(corpus.path),
                corpus_sha256=corpus.sha256,
                probe=_encode_probe(encoder).round(5).tolist(),
                encoder_form=encoder.form,
                encoder_weights=describe_weights(Path(encoder.name)),
                index_bytes=(partial / INDEX_FILE).stat().st_size,
                faiss=faiss.__version__,
            )
            (partial / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
            for name in (INDEX_FILE, MANIFEST_FILE):
                with (partial / name).open("rb") as file:
                    os.fsync(file.fileno())
            partial.replace(folder)
    except OSError as error:
        raise IndexFileError(f"{folder}: cannot be written ({error}); give a folder with --index") from error


def _write(index: Any, path: Path) -> None:
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:
        raise OSError(str(error)) from error


def _encode_probe(encoder: Encoder) -> Vectors:
    """Encode a fixed text: [dimension]."""
    return encoder.encode([_PROBE], "passage")[0]


def _check_manifest(folder: Path, corpus: Corpus, encoder: Encoder, options: IndexOptions) -> None:
    path = folder / MANIFEST_FILE
    try:
        manifest = IndexManifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise IndexFileError(f"{path}: is not a manifest of ours ({error}); {_suggest_fix(folder)}") from error
    file = folder / INDEX_FILE
    built, wanted = (each.model_dump_json(exclude=_SEARCH_OPTIONS) for each in (manifest.options, options))
    for name, theirs, ours in (
        ("options", built, wanted),
        ("dimension", manifest.dimension, encoder.dimension),
        ("encoder's form", manifest.encoder_form or encoder.form, encoder.form),
        ("rows", manifest.rows, len(corpus)),
        ("SHA-256 of the corpus", manifest.corpus_sha256, corpus.sha256),
        (f"bytes of {INDEX_FILE}", manifest.index_bytes, file.stat().st_size if file.is_file() else 0),
    ):
        if theirs != ours:
            raise IndexFileError(
                f"{folder}: {name}: {theirs} in the index, built from {manifest.corpus} with {manifest.encoder}, but "
                f"{ours} with {corpus.path} and {encoder.name}; {_suggest_fix(folder)}"
            )
    now = describe_weights(Path(encoder.name))
    if now and manifest.encoder_weights not in ("", now):
        raise IndexFileError(
            f"{folder}: encoder: the weights in {encoder.name} are not those that the index was built with "
            f"({manifest.encoder}); {_suggest_fix(folder)}"
        )
    cosine = float(np.dot(np.asarray(manifest.probe, np.float32), _encode_probe(encoder)))
    if cosine < _SAME_ENCODER:
        raise IndexFileError(
            f"{folder}: encoder: the index was built with {manifest.encoder}, here is {encoder.name}, whose vector of "
            f"the same text is another one (cosine {cosine:.3f}); {_suggest_fix(folder)}"
        )


def _suggest_fix(folder: Path) -> str:
    return f"start with what it was built from, give another --index, or delete {folder} to build it anew"
