"""The runs of tests/unit/report, which the viewer and the traces are tested with too."""

from __future__ import annotations

from tests.unit.report.conftest import empty, run

__all__ = ["empty", "run"]
