"""Breaks one claim of the project at a time and sees that a test notices: `python -m tests.claims`.

tests/claims.yaml lists the claims: where each is stated, the test that guards it, and a change that breaks it. Each
change is made in a copy of the repository. The test must fail there, and must pass in the copy as it is. Status 1 if
one of them does otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import aiohttp  # noqa: F401 (what the tests import first takes seconds; each test is a fork of this process)
import pytest
import torch
import transformers  # noqa: F401
import yaml

REPOSITORY = Path(__file__).resolve().parents[1]

FOLDERS = ("agentic", "benchmarks", "core", "examples", "scripts", "tests")


class Claim(NamedTuple):
    """Names a claim, where it is stated, the test that guards it, and a change of one file that breaks it."""

    claim: str
    stated: str
    test: str
    file: str
    before: str
    after: str


def read_claims() -> list[Claim]:
    return [Claim(**entry) for entry in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())]


def apply(claim: Claim, folder: Path) -> str:
    """Change a file of the copy; return what it was."""
    path = folder / claim.file
    text = path.read_text()
    path.write_text(text.replace(claim.before, claim.after))
    return text


def run_test(test: str, folder: Path) -> int:
    """Run a test in the copy, in a fork of this process, and return pytest's status."""
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        sys.path[0] = str(folder)
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--timeout=0", test])
        os._exit(int(status))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.claims", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="claims that hold this text, as do where they stand and their test"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.dont_write_bytecode = True  # two changes of one file within a second look the same to its cache
    chosen = [claim for claim in read_claims() if options.only in f"{claim.claim} {claim.stated} {claim.test}"]
    survived = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in FOLDERS:
            shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(REPOSITORY / "pyproject.toml", folder)
        broken = {test for test in {claim.test for claim in chosen} if run_test(test, folder) != pytest.ExitCode.OK}
        for test in sorted(broken):
            print(f"FAILS without any change: {test}")
        for claim in chosen:
            before = apply(claim, folder)
            noticed = claim.test not in broken and run_test(claim.test, folder) == pytest.ExitCode.TESTS_FAILED
            (folder / claim.file).write_text(before)
            survived += not noticed
            print(f"{'noticed ' if noticed else 'SURVIVED'}  {claim.claim}  ({claim.test})", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} broken claims make their test fail")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
