"""Run one file in the sandbox and print the result as JSON.

tokentrue sandbox FILE [--backend B] [--unsafe-local]
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from core.sandbox.backends import ISOLATED
from core.sandbox.result import SandboxUnavailable
from core.sandbox.sandbox import Sandbox


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if the code ended with `ok`, 1 if not, and 2 if it could not be run."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        sandbox = Sandbox(backend=options.backend)
        result = asyncio.run(sandbox.run(options.file.read_text(encoding="utf-8")))
    except (SandboxUnavailable, OSError, ValueError) as problem:
        parser.exit(2, f"{problem}\n")
    print(json.dumps(asdict(result)))
    return int(result.status != "ok")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue sandbox", description="run a file in the sandbox")
    parser.add_argument("file", type=Path)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--backend", choices=("auto", *ISOLATED), default="auto")
    kind.add_argument(
        "--unsafe-local", action="store_const", dest="backend", const="unsafe_local",
        help="no isolation at all: only for code that you trust",
    )  # fmt: skip
    return parser
