"""Texts and rows that the evaluators' tables share. Tables themselves are made by core/report/table.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from core.report.stats import Estimate
from core.report.table import format_score

PublishedRow = tuple[str, str, str, int, float, str]
"""(name of the model, our variant, data, length, per cent, source)"""


def published_rows(scores: Iterable[PublishedRow]) -> list[dict[str, Any]]:
    """Return rows for `RunFolder.save_published`."""
    return [
        {"name": name, "data": data, "length": length, "score": percent / 100, "source": source, "variant": variant}
        for name, variant, data, length, percent, source in scores
    ]


def estimate_json(estimate: Estimate) -> dict[str, Any]:
    return {"mean": estimate.mean, "ci95": [estimate.low, estimate.high]}


def estimate_text(estimate: Estimate | None) -> str:
    """Return mean and interval in per cent: 93.8 (91.2 to 95.9)."""
    return format_score(None if estimate is None else estimate_json(estimate))


def counts_text(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
