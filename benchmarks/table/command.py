"""Write one table of every published score that can be had and ours, and the commands of what is missing.

    tokentrue evaluate table

A published row has our score if a folder in --runs holds one of the same model under the same protocol
(benchmarks/harness/published.py); of several folders that of most tasks. Below the table stands what a reader must know
of each such folder: its failed samples, and how it departs. A row without a score, or with one of fewer tasks than the
published one, is listed with its command, the models that it asks, and what it lacks.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.aime.evaluate import EVALUATOR as AIME
from benchmarks.harness.command import Evaluator
from benchmarks.harness.plan import EXPECTED_ERRORS
from benchmarks.localization.evaluate import EVALUATOR as LOCALIZATION
from benchmarks.questions.evaluate import EVALUATOR as QUESTIONS
from benchmarks.ruler.evaluate import EVALUATOR as RULER
from benchmarks.table.evaluations import Evaluation, Places, find_evaluation, find_lacking, list_published
from benchmarks.tau2.evaluate import EVALUATOR as TAU2
from core.options import show_errors
from core.report import PublishedScore, build_summary
from core.report.table import data_sections, format_failures, markdown, note_comparisons, published_table
from core.runs.files import write_text
from core.runs.run_folder import RunFolder

EVALUATORS: dict[str, Evaluator[Any]] = {
    "ruler": RULER, "aime": AIME, "tau2": TAU2, "questions": QUESTIONS, "localize": LOCALIZATION,
}  # fmt: skip
Sections = Mapping[str, Any]
"""Maps data sets to what the summary of one folder says about them."""


@dataclass(frozen=True)
class Found:
    """Holds what the summary of a folder says that the table needs."""

    name: str
    sections: Sections
    departures: Sequence[str]


@show_errors(*EXPECTED_ERRORS, ValueError)
def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    places = Places(options.data, options.tau2_python, options.tau2_data)
    rows = list_published()
    by_evaluation = group_rows(rows, places, options.only)
    found = list(find_results(options.runs))
    text = write_table(rows, found)
    write_text(options.runs / "table.md", text)
    missing = find_missing(by_evaluation, found)
    print(text, describe_missing(missing, places), describe_unreachable(rows, places), sep="\n")
    return 0


def group_rows(
    rows: Iterable[PublishedScore], places: Places, only: Sequence[str]
) -> dict[Evaluation, list[PublishedScore]]:
    """Map each evaluation to the rows that it gives scores to."""
    found: dict[Evaluation, list[PublishedScore]] = {}
    for row in rows:
        evaluation = find_evaluation(row, places)
        if evaluation is not None and evaluation.benchmark in only:
            found.setdefault(evaluation, []).append(row)
    return found


def find_missing(
    by_evaluation: Mapping[Evaluation, Sequence[PublishedScore]], found: Sequence[Found]
) -> dict[Evaluation, list[PublishedScore]]:
    """Map each evaluation to those of its rows that no folder has a score for, of as many tasks as the published one.

    An evaluation that lacks none has no entry.
    """
    lacking = {
        evaluation: [row for row in rows if all(_count_tasks(row, each) < (row.n or 1) for each in found)]
        for evaluation, rows in by_evaluation.items()
    }
    return {evaluation: rows for evaluation, rows in lacking.items() if rows}


def _count_tasks(row: PublishedScore, found: Found) -> int:
    return int((row.find_ours(found.sections) or {"n": 0})["n"])


def find_results(runs: Path) -> Iterator[Found]:
    """Yield what the summaries of all folders say that hold evaluations."""
    for config in sorted(runs.glob("*/config.yaml")):
        folder = RunFolder(config.parent)
        if folder.evaluations():
            summary = build_summary(folder)
            yield Found(folder.path.name, data_sections(summary), summary["departures"])


def write_table(rows: Sequence[PublishedScore], found: Sequence[Found]) -> str:
    """Return the table of all rows: beside what was published, ours of the folder that has most tasks of it.

    Notes below it say how these folders depart from what was published, and which samples failed.
    """
    header, *_ = published_table([], {})
    lines, compared, used = [], 0, dict[str, tuple[Found, list[PublishedScore]]]()
    for row in rows:
        best = max(found, key=partial(_count_tasks, row), default=Found("", {}, ()))
        if _count_tasks(row, best):
            compared += 1
            used.setdefault(best.name, (best, []))[1].append(row)
        lines.append(published_table([row], best.sections)[1])
    notes = (describe_folder(*each) for each in used.values())
    return "\n\n".join([markdown(header, *lines), *notes, *note_comparisons(compared)]) + "\n"


def describe_folder(found: Found, rows: Sequence[PublishedScore]) -> str:
    """Say which of our scores are of a folder, how many of their samples failed, and how it departs."""
    names = dict.fromkeys(f"{row.name} on {row.data}" for row in rows)
    cells = {id(cell): cell for row in rows if (cell := row.find_cell(found.sections))}
    failures = sum((Counter(cell["failures"]) for cell in cells.values()), Counter[str]())
    told = [*([f"failed, and counted as wrong: {format_failures(failures)}"] if failures else []), *found.departures]
    return "\n".join([f"{found.name} ({', '.join(names)}):", *(f"- {line}" for line in told or ["no departure"])])


def describe_missing(missing: Mapping[Evaluation, Sequence[PublishedScore]], places: Places) -> str:
    """Return lines for the rows without a score of ours: the command, the models that it asks, and what it lacks."""
    lines = [
        f"{sum(map(len, missing.values()))} published scores have none of ours beside them.",
        "Name the server of the evaluated model by --policy-url, those of the others by --set.",
    ]
    for evaluation, rows in missing.items():
        lines.append(f"{len(rows)} rows ({rows[0].name}, {rows[0].data}): {evaluation.command}")
        about = [f"asks {', '.join(evaluation.models)}", *find_lacking(evaluation, places)]
        lines += [f"    {line}" for line in about]
    return "\n".join(lines)


def describe_unreachable(rows: Iterable[PublishedScore], places: Places) -> str:
    """Return lines for the rows that no command gives a score to."""
    lines = [
        f"    {row.name}, {row.data}{f' {row.length}' if row.length else ''}: {100 * row.score:.1f} ({row.source})"
        for row in rows
        if find_evaluation(row, places) is None
    ]
    return "\n".join(["No cell can be had for:", *lines])


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = argparse.ArgumentParser(prog="tokentrue evaluate table", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="holds the results' folders")
    parser.add_argument("--data", type=Path, default=Path("data"), metavar="DIR", help="holds the data (default: data)")
    parser.add_argument("--only", nargs="+", choices=EVALUATORS, default=tuple(EVALUATORS), metavar="BENCHMARK")
    parser.add_argument("--tau2-python", default=Places.tau2_python, metavar="PYTHON", help="has tau2-bench")
    parser.add_argument("--tau2-data", default=Places.tau2_data, metavar="DIR", help="its data")
    return parser
