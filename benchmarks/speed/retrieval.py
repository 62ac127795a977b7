"""The retrieval service: recall against exact search, and latency over HTTP: `python -m benchmarks.speed.retrieval`.

Recall: clustered vectors, as embeddings are, through the service's own build. Latency: the service as a child process,
hashing encoder, passages of made-up words; clients that each ask again as soon as they have an answer.
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

from benchmarks.speed.measure import environment, table
from core.options import checked
from core.policy.serving import free_port, run_server
from core.tools.retrieval.base import Kind, Vectors, normalise
from core.tools.retrieval.corpus import Corpus
from core.tools.retrieval.index import KINDS, build

DIMENSION, TOPK = 384, 10
CLIENTS = (1, 16, 64)
_WORDS_PER_PASSAGE, _WORDS_PER_QUERY, _VOCABULARY, _TOPIC_WORDS = 60, 10, 30_000, 200


class Clustered:
    """Encodes row numbers as vectors around random centres, the noise 0.7 as long as the centre."""

    name, dimension = "clustered", DIMENSION

    def __init__(self, centres: int, noise: float = 0.7):
        self._noise = noise
        self._centres = normalise(np.random.default_rng(0).standard_normal((centres, DIMENSION), np.float32))

    def encode(self, texts: Sequence[str], kind: Kind) -> Vectors:
        vectors = np.empty((len(texts), DIMENSION), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            random = np.random.default_rng((kind == "query", int(text)))
            noise = random.standard_normal(DIMENSION, np.float32) * self._noise / DIMENSION**0.5
            vector[:] = self._centres[random.integers(len(self._centres))] + noise
        return normalise(vectors)


def measure_recall(
    rows: int, queries: int, folder: Path, centres: int = 1000, kinds: Sequence[str] = tuple(KINDS)
) -> dict[str, dict[str, float]]:
    """Measure each kind with its default options: recall@10 against the first, and time to build and to search."""
    path = folder / "numbers.jsonl"
    path.write_text("".join(f'{{"id": {row}, "contents": "{row}"}}\n' for row in range(rows)))
    corpus, encoder = Corpus(path), Clustered(centres)
    asked = encoder.encode([str(query) for query in range(queries)], "query")
    result: dict[str, dict[str, float]] = {}
    exact: list[set[int]] = []
    for kind in kinds:
        began = time.process_time()
        index = build(corpus, encoder, KINDS[kind](), lambda done, total: None)
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
    """Write passages, each half words of one topic and half of a long tail; return queries like them."""
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
    """Measure p50 and p99 in ms and requests per second, and the ids that each query got."""
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
    """Measure each kind: the repeat with the best p50 at each number of clients, and recall@10 against the first."""
    corpus = folder / "texts.jsonl"
    texts = write_texts(corpus, rows, queries)
    result: dict[str, Any] = {}
    exact: list[set[str]] = []
    for kind in kinds:
        port = free_port("127.0.0.1")
        command = [sys.executable, "-m", "core.tools.retrieval", "--corpus", str(corpus), "--port", str(port)]
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


def recall_table(cells: dict[str, dict[str, float]]) -> str:
    rows = [
        [kind, f"{cell['recall']:.4f}", f"{cell['build_cpu_s']:.1f}", f"{cell['search_cpu_ms']:.2f}"]
        for kind, cell in cells.items()
    ]
    return table(["clustered vectors", "recall@10", "build, CPU s", "search, CPU ms / query"], rows)


def service_table(cells: dict[str, Any]) -> str:
    def lap(lap: dict[str, float]) -> str:
        return f"{lap['p50_ms']:.1f} / {lap['p99_ms']:.1f} ({lap['requests_per_s']:.0f})"

    rows = [[kind, f"{cell['recall']:.3f}", *map(lap, cell["clients"].values())] for kind, cell in cells.items()]
    clients = [f"{clients} client{'s' * (clients > 1)}" for clients in CLIENTS]
    return table(["p50 / p99 ms (requests / s)", "recall@10", *clients], rows)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.retrieval", description=__doc__)
    parser.add_argument("--rows", type=checked(PositiveInt), default=100_000, help="passages")
    parser.add_argument("--queries", type=checked(PositiveInt), default=1000)
    parser.add_argument(
        "--repeats", type=checked(PositiveInt), default=3, help="of latency, of which the best is taken"
    )
    parser.add_argument("--output", type=Path, default=Path("runs/speed/retrieval.json"))
    args = parser.parse_args(argv)
    import faiss

    faiss.omp_set_num_threads(1)
    result: dict[str, Any] = {"environment": environment(1), "rows": args.rows}
    with tempfile.TemporaryDirectory() as scratch:
        result["recall"] = measure_recall(args.rows, args.queries, Path(scratch))
        print(recall_table(result["recall"]), end="\n\n", flush=True)
        result["service"] = measure_service(args.rows, args.queries, args.repeats, Path(scratch))
        print(service_table(result["service"]))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
