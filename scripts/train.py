"""Train a method on the backend that --backend names, then write the report of an embedded run.

A run on a cluster and a dry run get no report here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from core.training_options import DEFAULT_PRESETS, make_training_parser

BACKENDS = {
    "embedded": "core.train.command",
    "slime": "core.backends.slime.launch",
    "vime": "core.backends.slime.launch",
    "verl": "core.backends.verl.launch",
}


def make_parser() -> argparse.ArgumentParser:
    return make_training_parser(*BACKENDS)


def main(arguments: list[str] | None = None) -> int:
    options, words = read_options(make_parser(), sys.argv[1:] if arguments is None else arguments)
    status: int = import_module(BACKENDS[options.backend]).main(words)
    if status or options.dry_run or options.backend != "embedded":
        return status
    return int(import_module("scripts.report").report(options.out, scores=False))


def read_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Read options, and return them with their words; both have the preset and the run folder, also by default."""
    options, words = parser.parse_args(words), list(words)
    if options.preset is None:
        options.preset = DEFAULT_PRESETS[options.backend]
        words += ["--preset", options.preset]
    if options.out is None:
        options.out = Path("runs") / f"{Path(options.method).resolve().name}-{Path(options.preset).stem}"
        words += ["--out", str(options.out)]
    return options, words
