"""Fetch tau2-bench's data at the commit of benchmarks/tau2/tasks.py, and check it file by file against git's own ids.

    tokentrue data tau2 --out TAU2_DATA        # 12 MB: retail, airline, telecom; what is there is checked alone

Give TAU2_DATA to `--tau2-data`, or set TAU2_DATA_DIR to it. The data are never part of this repository; nor is
tau2-bench, which pip installs from its own (benchmarks/tau2/README.md).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from agentic.toolorchestra.tau2.worker import git_blob
from benchmarks.data.git_files import check_out
from benchmarks.tau2.tasks import BLOBS, COMMIT
from core.data.files import DataError
from core.options import show_errors

SOURCE = "https://github.com/sierra-research/tau2-bench"
FOLDERS = tuple(sorted({f"data/tau2/{path.rpartition('/')[0]}" for path in BLOBS}))


def fetch(out: Path, source: str = SOURCE, commit: str = COMMIT) -> None:
    """Make a sparse, shallow checkout and move its `data/tau2` to `out`/tau2. Raises DataError if git failed."""
    checkout = out / ".tau2-bench"
    check_out(source, commit, FOLDERS, checkout)
    (checkout / "data" / "tau2").rename(out / "tau2")


def find_differences(out: Path, blobs: Mapping[str, str] = BLOBS) -> list[str]:
    """Return a line for each file that is missing or differs from the one of the commit."""
    found = []
    for path, blob in blobs.items():
        file = out / "tau2" / path
        if not file.is_file():
            found.append(f"{file}: missing")
        elif (found_blob := git_blob(file.read_bytes())) != blob:
            found.append(f"{file}: git blob {found_blob[:12]}, expected {blob[:12]}")
    return found


@show_errors(DataError, OSError)
def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    if not (options.out / "tau2").exists():
        fetch(options.out, options.source)
    if problems := find_differences(options.out):
        print("error: not the data of the pinned commit:\n" + "\n".join(problems), file=sys.stderr)
        return 1
    print(f"{options.out}: {len(BLOBS)} files of tau2-bench {COMMIT[:12]}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue data tau2", description="Fetch tau2-bench's data and check it.")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--from", dest="source", default=SOURCE, metavar="URL", help=f"git repository, not {SOURCE}")
    return parser
