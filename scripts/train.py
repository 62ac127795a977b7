"""Train a method on the backend that --backend names, then write the report of an embedded run.

A run on slime or vime and a dry run get no report here.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from core.training_options import DEFAULT_PRESETS, make_training_parser

BACKENDS = {
    "embedded": "core.train.command",
    "slime": "core.backends.slime.launch",
    "vime": "core.backends.slime.launch",
}


def make_parser() -> argparse.ArgumentParser:
    return make_training_parser(*BACKENDS)


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    options = resolve_defaults(make_parser().parse_args(words))
    resolved = ["--preset", options.preset, "--out", str(options.out)]
    status: int = import_module(BACKENDS[options.backend]).main([*words, *resolved])
    if status or options.dry_run or options.backend != "embedded":
        return status
    status = import_module("scripts.report").main([str(options.out)])
    return status


def resolve_defaults(options: argparse.Namespace) -> argparse.Namespace:
    """Fill in the preset and the run folder that the command line left out."""
    options.preset = options.preset or DEFAULT_PRESETS[options.backend]
    options.out = options.out or Path("runs") / f"{options.method}-{Path(options.preset).stem}"
    return options


WHOLE_EXPERIMENTS = ("tiny", "laptop")
"""Names the presets for which run.sh makes the data, trains and evaluates. The others bring their own data, and
evaluate.sh evaluates them; slime, vime and --dry-run only train."""


def print_experiment(arguments: list[str]) -> None:
    """Print preset and run folder if these options of run.sh ask for a whole experiment; else print nothing."""
    options = resolve_defaults(make_parser().parse_args(arguments))
    if options.preset in WHOLE_EXPERIMENTS and options.backend == "embedded" and not options.dry_run:
        print(options.preset, options.out)


if __name__ == "__main__":
    print_experiment(sys.argv[1:])
