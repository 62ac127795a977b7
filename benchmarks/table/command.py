"""Measure every published score that can be had, and write one table of what was published and what we got.

    tokentrue evaluate table --dry-run --gpus 4     # the table so far, and the plan: servers, GPUs, hours, commands
    tokentrue evaluate table --serve-python SGLANG/bin/python
    tokentrue evaluate table --stand-in MODEL --tasks 2  # without GPUs: one small model plays all of them
    tokentrue evaluate table --url Qwen/Qwen3-32B=http://host:30001

The command starts the servers that an evaluation needs within the GPUs it finds, and runs the evaluation into a folder
of its own in --runs. A published row has our score if a folder holds one of the same model under the same protocol
(benchmarks/harness/published.py), of as many tasks or of --tasks. A row without one is listed with what it lacks and
with its command. Killed at any moment, the same command goes on: evaluations that have all their rows are not run
again, and the others continue from their logs.

With --stand-in the scores say nothing about the published models. They lie in a folder of their own, where each model
is a link to the stand-in under the published name.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.harness.options import positive
from benchmarks.harness.plan import EXPECTED_ERRORS, EvaluationError
from benchmarks.table.data import get_data
from benchmarks.table.evaluations import Evaluation, Places, find_evaluation, list_published
from benchmarks.table.hours import TOKENS_A_SECOND, estimate_work
from benchmarks.table.servers import Servers, find_gpus, memory_needed
from core.policy.server_process import ServerError
from core.report import PublishedScore, build_summary
from core.report.table import data_sections, markdown, note_comparisons, published_table
from core.runs.files import write_text
from core.runs.run_folder import RunFolder

BENCHMARKS = ("ruler", "aime", "tau2", "questions")
Sections = Mapping[str, Any]
"""Maps data sets to what the summary of one folder says about them."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    places = Places(options.data, options.tau2_python, options.tau2_data)
    rows = list_published()
    by_evaluation = group_rows(rows, places, options.only)
    found_gpus, found_gigabytes = (0, 0.0) if options.dry_run and options.gpus else find_gpus()
    gpus, gigabytes = options.gpus or found_gpus, options.gpu_memory or found_gigabytes or 80.0
    if not (options.dry_run or gpus or options.stand_in or options.url):
        print("error: no GPU here. Give --stand-in MODEL, or --url for servers elsewhere.", file=sys.stderr)
        return 1
    runs = options.runs / "stand-in" if options.stand_in else options.runs
    with Servers(
        runs, gpus=gpus, gigabytes=gigabytes, python=options.serve_python, given=options.url, stand_in=options.stand_in
    ) as servers:
        try:
            if options.stand_in:
                check_stand_in(runs / "models", options.stand_in)
            missing = find_missing(by_evaluation, list(find_sections(runs)), options.tasks)
            reasons: dict[Evaluation, list[str]] = {}
            if not options.dry_run:
                for evaluation in sort_by_servers(missing):
                    reasons[evaluation] = run(evaluation, servers, runs, places, options)
            found = list(find_sections(runs))
        except (*EXPECTED_ERRORS, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        text = write_table(rows, found, options.stand_in)
        if not options.dry_run:
            write_text(runs / "table.md", text)
        print(text)
        still = find_missing(by_evaluation, found, options.tasks)
        print(describe_missing(still, reasons, servers, places, options))
    print(describe_unreachable(rows, places))
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


def sort_by_servers(evaluations: Iterable[Evaluation]) -> list[Evaluation]:
    """Return the evaluations with those that ask the same models next to each other."""
    return sorted(evaluations, key=lambda evaluation: (evaluation.benchmark, sorted(evaluation.models)))


def run(evaluation: Evaluation, servers: Servers, runs: Path, places: Places, options: argparse.Namespace) -> list[str]:
    """Run an evaluation, and return a line for each reason why it did not end."""
    stand_in = options.stand_in is not None
    lacking = get_data(evaluation, places, retrieval=stand_in or options.retrieval is not None, hosted=not stand_in)
    if lacking:
        return lacking
    try:
        urls = servers.start(evaluation.models, evaluation.cached_tokens)
    except ServerError as error:
        return str(error).splitlines()
    if urls is None:
        return [servers.explain(evaluation.models, evaluation.cached_tokens)]
    folder = runs / evaluation.name
    models = link_models(runs / "models", options.stand_in, evaluation.models) if stand_in else {}
    extra = [*evaluation.address(urls, stand_in, options.retrieval), "--out", str(folder), "--threads", "1"]
    extra += ["--tasks", str(options.tasks)] if options.tasks else []
    extra += ["--concurrency", str(options.concurrency)] if options.concurrency else []
    _, *words = evaluation.command(models, extra)
    print(f"running {folder.name}", flush=True)
    status = import_module(f"benchmarks.{evaluation.benchmark}.evaluate").main(words)
    return [] if status == 0 else ["it failed; its error is above"]


def check_stand_in(folder: Path, stand_in: Path) -> None:
    """Raise EvaluationError if links in `folder` lead to another stand-in: one table would have the scores of both."""
    for link in folder.glob("*"):
        if link.resolve() != stand_in.resolve():
            raise EvaluationError(
                f"{folder.parent} has the scores of {link.resolve()}; give another --runs, or delete it"
            )


def link_models(folder: Path, stand_in: Path, models: Iterable[str]) -> dict[str, str]:
    """Map each model to a link that has its name and leads to the stand-in."""
    folder.mkdir(parents=True, exist_ok=True)
    links = {}
    for model in models:
        link = folder / model.rpartition("/")[2]
        if not link.is_symlink():
            link.symlink_to(stand_in.absolute(), target_is_directory=True)
        links[model] = str(link)
    return links


def write_table(rows: Sequence[PublishedScore], found: Sequence[Sections], stand_in: Path | None) -> str:
    """Return the table of all rows, ours beside what was published."""
    header, *_ = published_table([], {})
    lines, compared = [], 0
    for row in rows:
        sections: Sections = next((known for known in found if row.find_ours(known) is not None), {})
        compared += bool(sections)
        lines.append(published_table([row], sections)[1])
    note = (
        f"Every model is played by {stand_in}: our scores say nothing about the published ones.\n\n" if stand_in else ""
    )
    return "\n\n".join([f"{note}{markdown(header, *lines)}", *note_comparisons(compared)]) + "\n"


def describe_missing(
    missing: Mapping[Evaluation, Sequence[PublishedScore]],
    reasons: Mapping[Evaluation, Sequence[str]],
    servers: Servers,
    places: Places,
    options: argparse.Namespace,
) -> str:
    """Return lines for the rows without a score of ours: why, the command, the GPUs of each server, and the hours."""
    hours = 0.0
    lines = [f"{sum(map(len, missing.values()))} published scores have none of ours beside them."]
    for evaluation, rows in missing.items():
        command = " ".join(["tokentrue evaluate", *evaluation.command()])
        lines.append(f"{len(rows)} rows ({rows[0].name}, {rows[0].data}): {command}")
        lines += [f"    {line}" for line in reasons.get(evaluation, [])]
        if options.dry_run and options.stand_in is None:
            found = servers.place(evaluation.models, evaluation.cached_tokens)
            if found is None:
                lines.append(f"    {servers.explain(evaluation.models, evaluation.cached_tokens)}")
                continue
            needed = memory_needed(evaluation.models, evaluation.cached_tokens)
            for model in evaluation.models:
                where = f"GPU {', '.join(map(str, found[model].gpus))}" if model in found else options.url[model]
                lines.append(f"    {model}: {needed[model]:.0f} GB, {where}")
            if evaluation.hosted:
                lines.append(f"    behind paid interfaces: {', '.join(evaluation.hosted)}")
            work = estimate_work(evaluation, rows, options.tasks)
            hours += work.hours(options.tokens_per_second)
            lines.append(f"    {work.describe(options.tokens_per_second)}")
    if hours:
        lines.append(f"About {hours:,.0f} hours for all that fit, one after another (benchmarks/table/hours.py).")
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


class _AddAddress(argparse.Action):
    """Collects MODEL=URL as a mapping."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        model, url = values
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), model: url})


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = argparse.ArgumentParser(prog="tokentrue evaluate table", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="holds the results' folders")
    parser.add_argument("--data", type=Path, default=Path("data"), metavar="DIR", help="holds the data (default: data)")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=BENCHMARKS, metavar="BENCHMARK")
    parser.add_argument("--dry-run", action="store_true", help="print the table so far and the plan; run nothing")
    parser.add_argument("--tasks", type=positive, metavar="N", help="at most N questions of each cell (default: all)")
    parser.add_argument("--concurrency", type=positive, metavar="N", help="samples at once (default: the evaluator's)")
    parser.add_argument("--tokens-per-second", type=positive, default=TOKENS_A_SECOND, metavar="N",
                        help="of a server, for the hours of the dry run (default: %(default)s, a guess)")  # fmt: skip
    where = parser.add_argument_group("models")
    where.add_argument("--gpus", type=positive, metavar="N", help="default: all of this machine")
    where.add_argument("--gpu-memory", type=positive, metavar="GB", help="of one GPU (default: as found, or 80)")
    where.add_argument(
        "--serve-python", default=sys.executable, metavar="PYTHON", help="of the environment with SGLang"
    )
    where.add_argument("--url", type=read_address, action=_AddAddress, default={}, metavar="MODEL=URL",
                       help="a server that runs already; may be repeated")  # fmt: skip
    where.add_argument("--stand-in", type=Path, metavar="MODEL", help="a small model in the place of every model")
    where.add_argument("--retrieval", metavar="URL", help="the retrieval service of AIME, FRAMES and HLE")
    where.add_argument("--tau2-python", default=Places.tau2_python, metavar="PYTHON", help="has tau2-bench")
    where.add_argument("--tau2-data", default=Places.tau2_data, metavar="DIR", help="its data")
    return parser


if __name__ == "__main__":
    sys.exit(main())
