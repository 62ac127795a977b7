"""Tests a small version of the benchmark: recall of every index kind, and the service over HTTP."""

from __future__ import annotations

from pathlib import Path

from benchmarks.speed.retrieval import CLIENTS, format_recall, format_service, measure_recall, measure_service


def test_the_presets_find_what_exact_search_finds(tmp_path: Path):
    """This takes 2,500 vectors x 384 around 25 centres; the full size has 100,000 around 1,000."""
    cells = measure_recall(2500, 100, tmp_path, centres=25)
    assert "| flat              | 1.0000    |" in format_recall(cells)
    assert cells["ivf"]["recall"] >= 0.99
    assert cells["hnsw"]["recall"] >= 0.99


def test_latency_of_a_service_is_measured(tmp_path: Path):
    result = measure_service(300, 40, 1, tmp_path, kinds=("flat",))
    cells = result["flat"]["clients"]
    assert list(cells) == [str(clients) for clients in CLIENTS]
    for cell in cells.values():
        assert 0 < cell["p50_ms"] <= cell["p99_ms"]
    assert result["flat"]["recall"] == 1
    assert "64 clients" in format_service(result)
