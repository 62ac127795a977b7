"""Train a method on the engine that --engine names, then write the report of an embedded run.

A run on slime and a dry run get no report here.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from core.training_options import DEFAULT_PRESETS, make_training_parser

ENGINES = {"embedded": "core.engine.train", "slime": "core.slime.launch"}


def make_parser() -> argparse.ArgumentParser:
    return make_training_parser(*ENGINES)


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    options = resolve_defaults(make_parser().parse_args(words))
    resolved = ["--preset", options.preset, "--out", str(options.out)]
    status: int = import_module(ENGINES[options.engine]).main([*words, *resolved])
    if status or options.dry_run or options.engine == "slime":
        return status
    status = import_module("core.report.__main__").main([str(options.out)])
    return status


def resolve_defaults(options: argparse.Namespace) -> argparse.Namespace:
    """Fill in the preset and the run folder that the command line left out."""
    options.preset = options.preset or DEFAULT_PRESETS[options.engine]
    options.out = options.out or Path("runs") / f"{options.method}-{Path(options.preset).stem}"
    return options


def print_tiny_folder(arguments: list[str]) -> None:
    """Print the run folder if these options of run.sh ask for the whole experiment of preset tiny; else print nothing.

    The whole experiment is data, training and evaluation. Other presets bring their own data and are evaluated by
    evaluate.sh; slime and --dry-run only train.
    """
    options = resolve_defaults(make_parser().parse_args(arguments))
    if options.preset == "tiny" and options.engine == "embedded" and not options.dry_run:
        print(options.out)


if __name__ == "__main__":
    print_tiny_folder(sys.argv[1:])
