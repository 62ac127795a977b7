"""Fetch a published data set, check it, and write it where the presets look for it.

    tokentrue data download aime24 dapo-math-17k
    tokentrue data download hotpotqa --out data --from FOLDER_WITH_BOTH_FILES
    tokentrue data download essays squad                  # what RULER hides its needles in, and asks about
    tokentrue data download gsm8k math                    # train, eval and test of a benchmark, in a folder each

In benchmarks/data, prepare.py describes each set and the checks; sets.py and coding.py describe the benchmarks, their
splits, and what is left out of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.data.coding import CODING_BENCHMARKS
from benchmarks.data.prepare import SETS, prepare, write_sha256
from benchmarks.data.sets import BENCHMARKS, read_benchmark
from core.data.files import DataError, write_jsonl
from core.data.splits import refuse_shown
from core.options import make_command_parser, show_errors

SPLIT_SETS = {**BENCHMARKS, **CODING_BENCHMARKS}


@show_errors(DataError, OSError)
def main(arguments: list[str] | None = None) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if len(options.names) > 1 and (options.source or options.rows):
        parser.error("--from and --rows are for one data set at a time")
    if options.few_shot and not set(options.names) <= SPLIT_SETS.keys():
        parser.error(f"--few-shot is for {', '.join(SPLIT_SETS)}")
    if options.rows and not set(options.names) <= SETS.keys():
        parser.error(f"--rows is for {', '.join(SETS)}")
    for name in options.names:
        if name in SPLIT_SETS:
            write_splits(name, options)
            continue
        for path in prepare(name, options.out, options.source, options.rows):
            files = path.iterdir() if path.is_dir() else [path]
            print(f"{path} ({sum(file.stat().st_size for file in files):,} bytes, {path}.sha256)")
    return 0


def write_splits(name: str, options: argparse.Namespace) -> None:
    """Write the splits of a benchmark that have tasks, and tell how they came about."""
    benchmark = SPLIT_SETS[name]
    splits, told = read_benchmark(name, benchmark, options.source)
    if options.few_shot:
        refuse_shown(splits["eval"] + splits["test"], options.few_shot)
    for split, tasks in splits.items():
        path = options.out / name / f"{split}.jsonl"
        if path.exists() and not tasks:
            path.unlink()
            path.with_name(f"{path.name}.sha256").unlink(missing_ok=True)
            print(f"note: {path} of an earlier call is deleted: nothing says that it shares no question with these")
        if tasks:
            write_jsonl(path, tasks)
            write_sha256(path)
            print(f"{path} ({len(tasks):,} tasks, {path}.sha256)")
    print(f"note: {name}: splits {benchmark.rule}")
    for what, count in told.items():
        print(f"note: {name}: {what} ({count:,})")


def make_parser() -> argparse.ArgumentParser:
    parser = make_command_parser("data download", "Fetch a published data set and check it.")
    names = [*SETS, *SPLIT_SETS]
    parser.add_argument("names", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--out", type=Path, default=Path("data"), metavar="DIR", help="default: data")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="PATH", help="a local file or folder instead of the network"
    )
    parser.add_argument("--rows", type=int, metavar="N", help="the number of records, where the published set changed")
    shown = "a text of examples: refused if it holds a question of eval or test"
    parser.add_argument("--few-shot", type=Path, metavar="FILE", help=shown)
    return parser
