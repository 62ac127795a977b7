"""What a reader sees of a run. `write_report` builds summary.json, table.md and report.html from a run folder."""

from __future__ import annotations

from typing import Any

from core.report.html import render_page
from core.report.summary import build_summary
from core.report.table import Published, render_table
from core.runs.files import write_json, write_text
from core.runs.run_folder import RunFolder


def write_report(folder: RunFolder, headline: str | None = None) -> dict[str, Any]:
    """Write the three files and return the summary. `headline` and errors are those of `build_summary`."""
    summary = build_summary(folder, headline)
    published = [Published.from_json(row) for row in folder.published["rows"]]
    write_json(folder.path / "summary.json", summary)
    write_text(folder.path / "table.md", render_table(summary, published))
    write_text(folder.path / "report.html", render_page(folder, summary, published))
    return summary
