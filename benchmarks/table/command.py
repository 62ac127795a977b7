"""Write one table of every published score that can be had and ours, and run what is missing.

    tokentrue evaluate table --dry-run          # the table so far, and for each missing row its command
    tokentrue evaluate table --url Qwen/Qwen3-32B=http://host:30001 --url nvidia/Orchestrator-8B=http://host:30000

An evaluation runs if the servers of all its models are named (`--url`) and its data is there, into a folder of its own
in --runs. A published row has our score if a folder holds one of the same model under the same protocol
(benchmarks/harness/published.py), of as many tasks or of --tasks. A row without one is listed with what it lacks and
with its command. Killed at any moment, the same command goes on: evaluations that have all their rows are not run
again, and the others continue from their records.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.aime.evaluate import EVALUATOR as AIME
from benchmarks.harness.command import Evaluator
from benchmarks.harness.options import positive
from benchmarks.harness.plan import EXPECTED_ERRORS
from benchmarks.localization.evaluate import EVALUATOR as LOCALIZATION
from benchmarks.questions.evaluate import EVALUATOR as QUESTIONS
from benchmarks.ruler.evaluate import EVALUATOR as RULER
from benchmarks.table.evaluations import Evaluation, Places, find_evaluation, find_lacking, list_published
from benchmarks.tau2.evaluate import EVALUATOR as TAU2
from core.options import show_errors
from core.report import PublishedScore, build_summary
from core.report.table import data_sections, markdown, note_comparisons, published_table
from core.runs.files import write_text
from core.runs.run_folder import RunFolder

EVALUATORS: dict[str, Evaluator[Any]] = {
    "ruler": RULER, "aime": AIME, "tau2": TAU2, "questions": QUESTIONS, "localize": LOCALIZATION,
}  # fmt: skip
Sections = Mapping[str, Any]
"""Maps data sets to what the summary of one folder says about them."""


@show_errors(*EXPECTED_ERRORS, ValueError)
def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    places = Places(options.data, options.tau2_python, options.tau2_data)
    rows = list_published()
    by_evaluation = group_rows(rows, places, options.only)
    reasons: dict[Evaluation, list[str]] = {}
    missing = find_missing(by_evaluation, list(find_sections(options.runs)), options.tasks)
    for evaluation in () if options.dry_run else missing:
        reasons[evaluation] = run(evaluation, places, options)
    found = list(find_sections(options.runs))
    text = write_table(rows, found)
    if not options.dry_run:
        write_text(options.runs / "table.md", text)
    still = find_missing(by_evaluation, found, options.tasks)
    print(text, describe_missing(still, reasons), describe_unreachable(rows, places), sep="\n")
    return 0 if options.dry_run or not still else 1


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
    by_evaluation: Mapping[Evaluation, Sequence[PublishedScore]], found: Sequence[Sections], tasks: int | None = None
) -> dict[Evaluation, list[PublishedScore]]:
    """Map each evaluation to those of its rows that no folder has a score for; one that lacks none has no entry.

    A score counts if it is of as many tasks as the published one, or of `tasks` if that is fewer.
    """
    lacking = {
        evaluation: [row for row in rows if not any(_is_whole(row, sections, tasks) for sections in found)]
        for evaluation, rows in by_evaluation.items()
    }
    return {evaluation: rows for evaluation, rows in lacking.items() if rows}


def _is_whole(row: PublishedScore, sections: Sections, tasks: int | None) -> bool:
    ours = row.find_ours(sections)
    published = row.n or 0
    return ours is not None and bool(ours["n"] >= min(published, tasks or published))


def find_sections(runs: Path) -> Iterator[Sections]:
    """Yield the sections of the summaries of all folders that hold evaluations."""
    for config in sorted(runs.glob("*/config.yaml")):
        folder = RunFolder(config.parent)
        if folder.evaluations():
            yield data_sections(build_summary(folder))


def run(evaluation: Evaluation, places: Places, options: argparse.Namespace) -> list[str]:
    """Run an evaluation, and return a line for each reason why it did not end."""
    urls = dict(options.url)
    unserved = [model for model in evaluation.models if model not in urls]
    lacking = [f"a server of {model}: --url {model}=URL" for model in unserved]
    lacking += find_lacking(evaluation, places, retrieval=options.retrieval is not None)
    if lacking:
        return lacking
    request = {
        **evaluation.request(urls, options.retrieval),
        "out": options.runs / evaluation.name,
        "threads": 1,
        **({"tasks": options.tasks} if options.tasks else {}),
    }
    print(f"running {evaluation.name}", flush=True)
    try:
        status = EVALUATORS[evaluation.benchmark].run(**request)
    except Exception:  # the other evaluations and the table do not depend on it
        traceback.print_exc()
        status = 1
    return [] if status == 0 else ["it failed; its error is above"]


def write_table(rows: Sequence[PublishedScore], found: Sequence[Sections]) -> str:
    """Return the table of all rows, ours beside what was published."""
    header, *_ = published_table([], {})
    lines, compared = [], 0
    for row in rows:
        sections: Sections = next((known for known in found if row.find_ours(known) is not None), {})
        compared += bool(sections)
        lines.append(published_table([row], sections)[1])
    return "\n\n".join([markdown(header, *lines), *note_comparisons(compared)]) + "\n"


def describe_missing(
    missing: Mapping[Evaluation, Sequence[PublishedScore]], reasons: Mapping[Evaluation, Sequence[str]]
) -> str:
    """Return lines for the rows without a score of ours: the command, and what it lacked."""
    lines = [f"{sum(map(len, missing.values()))} published scores have none of ours beside them."]
    for evaluation, rows in missing.items():
        lines.append(f"{len(rows)} rows ({rows[0].name}, {rows[0].data}): {evaluation.command}")
        lines += [f"    {line}" for line in reasons.get(evaluation, [])]
    return "\n".join(lines)


def describe_unreachable(rows: Iterable[PublishedScore], places: Places) -> str:
    """Return lines for the rows that no command gives a score to."""
    lines = [
        f"    {row.name}, {row.data}{f' {row.length}' if row.length else ''}: {100 * row.score:.1f} ({row.source})"
        for row in rows
        if find_evaluation(row, places) is None
    ]
    return "\n".join(["No cell can be had for:", *lines])


def read_address(text: str) -> tuple[str, str]:
    model, equals, url = text.partition("=")
    if not equals or not url.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is not MODEL=http://HOST:PORT")
    return model, url


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = argparse.ArgumentParser(prog="tokentrue evaluate table", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="holds the results' folders")
    parser.add_argument("--data", type=Path, default=Path("data"), metavar="DIR", help="holds the data (default: data)")
    parser.add_argument("--only", nargs="+", choices=EVALUATORS, default=tuple(EVALUATORS), metavar="BENCHMARK")
    parser.add_argument("--dry-run", action="store_true", help="print the table so far and what is missing")
    parser.add_argument("--tasks", type=positive, metavar="N", help="at most N questions of each cell (default: all)")
    where = parser.add_argument_group("models")
    where.add_argument("--url", type=read_address, action="append", default=[], metavar="MODEL=URL",
                       help="a server that runs already; may be repeated")  # fmt: skip
    where.add_argument("--retrieval", metavar="URL", help="the retrieval service of AIME, FRAMES and HLE")
    where.add_argument("--tau2-python", default=Places.tau2_python, metavar="PYTHON", help="has tau2-bench")
    where.add_argument("--tau2-data", default=Places.tau2_data, metavar="DIR", help="its data")
    return parser
