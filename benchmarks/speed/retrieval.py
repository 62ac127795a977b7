"""Measure the retrieval service: recall against exact search, and latency over HTTP (`tokentrue speed retrieval`).

Recall is measured on clustered vectors, as embeddings are, with indexes that the service's own code builds. For latency
the service runs as a child process with the hashing encoder, on passages of made-up words. Each client sends its next
query as soon as it has an answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from pydantic import PositiveInt

from benchmarks.speed.measure import align_columns, describe_environment
from core.options import argparse_type
from core.policy.server_process import find_free_port, run_server
from core.retrieval.corpus import Corpus
from core.retrieval.encoders import TextKind, Vectors, normalize_rows
from core.retrieval.index import KINDS, build_index

DIMENSION, TOPK = 384, 10
CLIENTS = (1, 16, 64)
_WORDS_PER_PASSAGE, _WORDS_PER_QUERY, _VOCABULARY, _TOPIC_WORDS = 60, 10, 30_000, 200


class ClusteredEncoder:
    """Encodes row numbers as vectors around random centres; the noise is 0.7 times as long as the centre."""

    name, dimension = "clustered", DIMENSION

    def __init__(self, centres: int, noise: float = 0.7):
        self._noise = noise
        self._centres = normalize_rows(np.random.default_rng(0).standard_normal((centres, DIMENSION), np.float32))

    def encode(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        vectors = np.empty((len(texts), DIMENSION), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            random = np.random.default_rng((kind == "query", int(text)))
            noise = random.standard_normal(DIMENSION, np.float32) * self._noise / DIMENSION**0.5
            vector[:] = self._centres[random.integers(len(self._centres))] + noise
        return normalize_rows(vectors)


def measure_recall(
    rows: int, queries: int, folder: Path, centres: int = 1000, kinds: Sequence[str] = tuple(KINDS)
) -> dict[str, dict[str, float]]:
    """Return recall@10 against the first kind, and build and search time, of each kind with its default options."""
    path = folder / "numbers.jsonl"
    path.write_text("".join(f'{{"id": {row}, "contents": "{row}"}}\n' for row in range(rows)))
    corpus, encoder = Corpus(path), ClusteredEncoder(centres)
    asked = encoder.encode([str(query) for query in range(queries)], "query")
    result: dict[str, dict[str, float]] = {}
    exact: list[set[int]] = []
    for kind in kinds:
        began = time.process_time()
        index = build_index(corpus, encoder, KINDS[kind](), lambda done, total: None)
        built = time.process_time()
        found = [set(row) for row in index.search(asked, TOPK)[1].tolist()]
        searched = time.process_time()
        exact = exact or found
        result[kind] = {
            "recall": sum(len(a & b) for a, b in zip(exact, found, strict=True)) / (TOPK * queries),
            "build_cpu_s": built - began,
            "search_cpu_ms": 1000 * (searched - built) / queries,
        }
    return result


def write_texts(path: Path, rows: int, queries: int) -> list[str]:
    """Write a corpus of passages, half words of one topic and half of a long tail; return queries like them."""
    random = np.random.default_rng(0)

    def text(words: int) -> str:
        topic = random.integers(_VOCABULARY - _TOPIC_WORDS)
        own = topic + random.integers(_TOPIC_WORDS, size=words // 2)
        tail = np.minimum(random.zipf(1.3, words - words // 2), _VOCABULARY)
        return " ".join(f"w{word}" for word in (*own, *tail))

    with path.open("w") as file:
        for row in range(rows):
            file.write(json.dumps({"id": str(row), "contents": text(_WORDS_PER_PASSAGE)}) + "\n")
    return [text(_WORDS_PER_QUERY) for _ in range(queries)]


async def measure_latency(url: str, queries: Sequence[str], clients: int) -> tuple[dict[str, float], list[set[str]]]:
    """Return p50 and p99 in ms, requests per second, and the ids that each query found."""
    waiting = iter(enumerate(queries))
    seconds: list[float] = []
    found: list[set[str]] = [set()] * len(queries)

    async def client(session: aiohttp.ClientSession) -> None:
        for number, query in waiting:
            began = time.perf_counter()
            async with session.post(f"{url}/retrieve", json={"queries": [query], "topk": TOPK}) as response:
                (hits,) = (await response.json())["result"]
            seconds.append(time.perf_counter() - began)
            found[number] = {hit["id"] for hit in hits}

    async with aiohttp.ClientSession(raise_for_status=True) as session:
        began = time.perf_counter()
        await asyncio.gather(*(client(session) for _ in range(clients)))
        wall = time.perf_counter() - began
    p50, p99 = np.percentile(seconds, [50, 99]) * 1000
    return {"p50_ms": float(p50), "p99_ms": float(p99), "requests_per_s": len(queries) / wall}, found


def measure_service(
    rows: int, queries: int, repeats: int, folder: Path, kinds: Sequence[str] = tuple(KINDS)
) -> dict[str, Any]:
    """Return, for each kind, the repeat with the best p50 per number of clients, and recall@10 against the first."""
    corpus = folder / "texts.jsonl"
    texts = write_texts(corpus, rows, queries)
    result: dict[str, Any] = {}
    exact: list[set[str]] = []
    for kind in kinds:
        port = find_free_port("127.0.0.1")
        command = [sys.executable, "-m", "core.retrieval", "--corpus", str(corpus), "--port", str(port)]
        command += ["--encoder", f"hashing={DIMENSION}", "--kind", kind, "--threads", "1"]
        with run_server(command, f"http://127.0.0.1:{port}", log=folder / f"{kind}.log", start_s=3600.0) as url:
            found: list[set[str]] = []
            cells: dict[str, dict[str, float]] = {}
            for clients in CLIENTS:
                laps = []
                for _ in range(repeats):
                    lap, found = asyncio.run(measure_latency(url, texts, clients))
                    laps.append(lap)
                cells[str(clients)] = min(laps, key=lambda lap: lap["p50_ms"])
        exact = exact or found
        recall = sum(len(a & b) for a, b in zip(exact, found, strict=True)) / (TOPK * queries)
        result[kind] = {"recall": recall, "clients": cells}
    return result


def format_recall(cells: dict[str, dict[str, float]]) -> str:
    rows = [
        [kind, f"{cell['recall']:.4f}", f"{cell['build_cpu_s']:.1f}", f"{cell['search_cpu_ms']:.2f}"]
        for kind, cell in cells.items()
    ]
    return align_columns(["clustered vectors", "recall@10", "build, CPU s", "search, CPU ms / query"], rows)


def format_service(cells: dict[str, Any]) -> str:
    def lap(lap: dict[str, float]) -> str:
        return f"{lap['p50_ms']:.1f} / {lap['p99_ms']:.1f} ({lap['requests_per_s']:.0f})"

    rows = [[kind, f"{cell['recall']:.3f}", *map(lap, cell["clients"].values())] for kind, cell in cells.items()]
    clients = [f"{clients} client{'s' * (clients > 1)}" for clients in CLIENTS]
    return align_columns(["p50 / p99 ms (requests / s)", "recall@10", *clients], rows)


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    import faiss

    faiss.omp_set_num_threads(1)
    result: dict[str, Any] = {"environment": describe_environment(1), "rows": options.rows}
    with tempfile.TemporaryDirectory() as scratch:
        result["recall"] = measure_recall(options.rows, options.queries, Path(scratch))
        print(format_recall(result["recall"]), end="\n\n", flush=True)
        result["service"] = measure_service(options.rows, options.queries, options.repeats, Path(scratch))
        print(format_service(result["service"]))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue speed retrieval", description=__doc__)
    parser.add_argument("--rows", type=argparse_type(PositiveInt), default=100_000, help="passages")
    parser.add_argument("--queries", type=argparse_type(PositiveInt), default=1000)
    parser.add_argument(
        "--repeats", type=argparse_type(PositiveInt), default=3, help="repeats of the latency test; the best counts"
    )
    parser.add_argument("--output", type=Path, default=Path("runs/speed/retrieval.json"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
