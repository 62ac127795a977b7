"""Shows a run to a reader: its summary, tables, charts, an HTML page and lines in the terminal.

README.md shows what to import. The modules `stats` and `table` are public as a whole. It imports `core.runs`, which
never imports it.
"""

from __future__ import annotations

from typing import Any

from core.report import stats, table
from core.report.console import print_summary
from core.report.html import begin_page, render_figure, render_page
from core.report.summary import build_summary
from core.report.table import PublishedScore, render_table
from core.runs.files import write_json, write_text
from core.runs.run_folder import RunFolder

__all__ = ["PublishedScore", "begin_page", "build_summary", "print_summary", "stats", "table", "write_report"]


def write_report(folder: RunFolder, headline: str | None = None) -> dict[str, Any]:
    """Write summary.json, table.md, report.html and, for scores by length, figure.svg; return the summary.

    `headline` names the data set that comes first; by default it is the one with most results.

    Raises ValueError when `headline` was not evaluated, or a file of the folder is broken.
    """
    summary = build_summary(folder, headline)
    published = [PublishedScore(**row) for row in folder.published["rows"]]
    write_json(folder.path / "summary.json", summary)
    write_text(folder.path / "table.md", render_table(summary, published))
    write_text(folder.path / "report.html", render_page(folder, summary, published))
    if figure := render_figure(summary):
        write_text(folder.path / "figure.svg", figure)
    else:
        (folder.path / "figure.svg").unlink(missing_ok=True)  # one of other scores
    return summary
