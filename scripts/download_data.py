"""Fetch a published data set, check it, and write it where the presets look for it.

    tokentrue data download aime24 dapo-math-17k
    tokentrue data download hotpotqa --out data --from FOLDER_WITH_BOTH_FILES
    tokentrue data download essays squad                  # what RULER hides its needles in, and asks about
    tokentrue data download gsm8k math                    # train, eval and test of a benchmark, in a folder each

core/data/sets.py describes each set and the checks; benchmarks/data describes the benchmarks, their splits, and what
is left out of them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.data.coding import CODING_BENCHMARKS
from benchmarks.data.sets import BENCHMARKS, describe_splits, prepare_benchmark
from core.data.files import DataError
from core.data.sets import SETS, prepare

SPLIT_SETS = {**BENCHMARKS, **CODING_BENCHMARKS}


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if len(options.names) > 1 and (options.source or options.rows):
        parser.error("--from and --rows are for one data set at a time")
    split_sets = SPLIT_SETS.keys() & set(options.names)
    if (options.few_shot or options.resplit) and len(split_sets) < len(options.names):
        parser.error(f"--few-shot and --resplit are for {', '.join(SPLIT_SETS)}")
    if options.rows and split_sets:
        parser.error(f"--rows is not for {', '.join(split_sets)}")
    try:
        for name in options.names:
            if name in SPLIT_SETS:
                written, told = prepare_benchmark(
                    name,
                    SPLIT_SETS[name],
                    options.out,
                    options.source,
                    few_shot=options.few_shot,
                    resplit=options.resplit,
                )
                for path, count in written.items():
                    print(f"{path} ({count:,} tasks, {path}.sha256)")
                print(f"note: {name}: {describe_splits(SPLIT_SETS[name], options.resplit)}")
                for what, count in told.items():
                    print(f"note: {name}: {what} ({count:,})")
                continue
            for path in prepare(name, options.out, options.source, options.rows):
                files = path.iterdir() if path.is_dir() else [path]
                print(f"{path} ({sum(file.stat().st_size for file in files):,} bytes, {path}.sha256)")
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tokentrue data download", description="Fetch a published data set and check it."
    )
    names = [*SETS, *SPLIT_SETS]
    parser.add_argument("names", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--out", type=Path, default=Path("data"), metavar="DIR", help="default: data")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="PATH", help="a local file or folder instead of the network"
    )
    parser.add_argument("--rows", type=int, metavar="N", help="the number of records, where the published set changed")
    parser.add_argument(
        "--few-shot",
        type=Path,
        metavar="FILE",
        help="a text of examples: refused if it holds a question of eval or test",
    )
    parser.add_argument(
        "--resplit",
        action="store_true",
        help="divide all records by hash: no figure of it compares with a published one",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
