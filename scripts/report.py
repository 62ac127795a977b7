"""Rebuild the summary.json, table.md, view.html and report.html of a run folder, and print the summary."""

from __future__ import annotations

import argparse
from pathlib import Path

from core.inspect import refresh_view
from core.options import show_errors
from core.report import print_summary, write_report
from core.runs.run_folder import RunFolder


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return report(options.run_dir, options.data)


@show_errors(ValueError, OSError, status=2)
def report(run_dir: Path, data: str | None = None, *, scores: bool = True) -> int:
    """Write the report of a run, print its summary, in which `scores` may be left out, and return the exit status."""
    folder = RunFolder(run_dir)
    refresh_view(folder)  # first: the report links to it
    summary = write_report(folder, data)
    print_summary(summary, scores=scores)
    print(f"report: {folder.path / 'report.html'}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue report", description=__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="a folder that a run has left")
    parser.add_argument("--data", help="data set of the headline table (default: the most evaluated one)")
    return parser
