"""Fetch a published data set, check it, and write it where the presets look for it.

    tokentrue data download aime24 dapo-math-17k
    tokentrue data download hotpotqa --out data --from FOLDER_WITH_BOTH_FILES
    tokentrue data download essays squad                  # what RULER hides its needles in, and asks about

core/data/sets.py describes each set and the checks.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from core.data.files import DataError
from core.data.sets import SETS, prepare


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if len(options.names) > 1 and (options.source or options.rows):
        parser.error("--from and --rows are for one data set at a time")
    try:
        for name in options.names:
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
    parser.add_argument("names", nargs="+", choices=SETS, metavar="NAME", help=", ".join(SETS))
    parser.add_argument("--out", type=Path, default=Path("data"), metavar="DIR", help="default: data")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="PATH", help="a local file or folder instead of the network"
    )
    parser.add_argument("--rows", type=int, metavar="N", help="the number of records, where the published set changed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
