"""Texts and rows that the evaluators' tables share. Tables themselves are made by core/report/table.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.report.stats import Estimate
from core.report.table import format_score


def estimate_text(estimate: Estimate | None) -> str:
    """Return mean and interval in per cent: 93.8 (91.2 to 95.9)."""
    return format_score(None if estimate is None else estimate.to_json())


def counts_text(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
