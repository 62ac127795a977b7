"""Serve a corpus: `tokentrue serve retrieval --corpus FILE.jsonl`.

    ... --kind hnsw --set ef_search=256
    ... --encoder e5 --device cuda --index wiki-18/e5_Flat.index --index-device cuda
    ... --encoder qwen3-embedding=Qwen/Qwen3-Embedding-0.6B --kind ivf --port 1401

The index is built at the first start, beside the corpus if `--index` is not given, and used again afterwards. It takes
4 bytes per passage and dimension (21M passages of 768: 65 GB); HNSW takes 8 more per neighbour. It is mapped from its
file and should fit into memory; the corpus need not. A GPU needs half of that, in float16.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web
from pydantic import PositiveInt, ValidationError
from rich.console import Console

from core.options import Device, argparse_type
from core.retrieval.batching import Batcher
from core.retrieval.corpus import Corpus
from core.retrieval.encoders import make_encoder
from core.retrieval.index import KINDS, IndexFileError, IndexOptions, Retriever, move_to_gpu
from core.retrieval.index_folder import open_retriever
from core.retrieval.server import RetrievalServer
from core.runs.progress import ProgressBoard, ProgressLine
from core.serving import add_address_options, serve_app


def main(argv: list[str] | None = None) -> None:
    args = make_parser().parse_args(argv)

    def open_app(api_key: str | None) -> tuple[web.Application, str]:
        retriever = _open_retriever(args)
        batcher = Batcher(retriever.search, prepare=lambda: set_threads(args.threads))
        about = f"{len(retriever.corpus)} passages, {retriever.encoder.name}, {type(retriever.index).__name__}"
        return RetrievalServer(retriever, batcher, api_key=api_key).make_app(), about

    serve_app(args, open_app)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue serve retrieval", description="Serve passages of a corpus.")
    parser.add_argument("--corpus", type=Path, required=True, help='JSON lines of {"id", "contents"}')
    parser.add_argument("--index", type=Path, help="folder, built if absent; or a FAISS file made elsewhere")
    add_address_options(parser, 8000)
    parser.add_argument(
        "--encoder",
        default="hashing",
        help="hashing (by shared words, no download), minilm, e5, qwen3-embedding; "
        "another model: FAMILY=PATH_OR_HUB_ID, or PATH_OR_HUB_ID if the family's name is in it",
    )
    parser.add_argument("--kind", choices=list(KINDS), default="flat", help="hashing is served best by flat")
    parser.add_argument(
        "--set", nargs="*", action="extend", default=[], metavar="NAME=VALUE", help="of ivf: lists, probes; "
        "of hnsw: neighbors, ef_construction, ef_search",
    )  # fmt: skip
    parser.add_argument(
        "--device",
        type=argparse_type(Device),
        default="auto",
        help="of the encoder: cpu, cuda, cuda:N, auto (cuda if there)",
    )
    parser.add_argument("--index-device", default="cpu", help="cpu, cuda (sharded over all GPUs) or cuda:N: faiss-gpu")
    parser.add_argument("--threads", type=argparse_type(PositiveInt), help="of FAISS and torch; all cores if left out")
    return parser


def _open_retriever(args: argparse.Namespace) -> Retriever:
    options = _read_options(args.kind, args.set)
    corpus = Corpus(args.corpus)
    encoder = make_encoder(args.encoder, args.device)
    set_threads(args.threads)
    label = f"indexing {args.corpus.name}"
    with ProgressBoard(Console(stderr=True)) as board:  # it shows nothing where nothing is built
        retriever = open_retriever(
            corpus,
            encoder,
            options,
            path=args.index,
            progress=lambda done, total: board.show(ProgressLine(label, done, total, ended=done == total)),
        )
    if args.index_device != "cpu":
        retriever.index = move_to_gpu(retriever.index, args.index_device)
    return retriever


def _read_options(kind: str, settings: Sequence[str]) -> IndexOptions:
    values = {name: value for name, _, value in (setting.partition("=") for setting in settings)}
    try:
        return KINDS[kind].model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        known = ", ".join(name for name in KINDS[kind].model_fields if name != "kind") or "none"
        raise IndexFileError(f"--set {first['loc'][0]}: {first['msg']}; options of {kind}: {known}") from error


def set_threads(threads: int | None) -> None:
    """Set the number of threads; OpenMP keeps it for each calling thread."""
    if threads is None:
        return
    import faiss

    faiss.omp_set_num_threads(threads)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
