"""The options of `tokentrue train`, which both engines share. Nothing but the standard library is imported here, so
that `--help` and completion are quick and need no installation."""

from __future__ import annotations

import argparse
from pathlib import Path

DEFAULT_PRESETS = {"embedded": "tiny", "slime": "seed"}
"""Maps an engine to the preset that it takes without --preset."""


def make_training_parser(*engines: str) -> argparse.ArgumentParser:
    """Return a parser of the options that at least one of `engines` has; the first engine is the default."""
    presets = ", ".join(f"{DEFAULT_PRESETS[engine]} on {engine}" for engine in engines)
    parser = argparse.ArgumentParser(
        prog="tokentrue train",
        description="Train a method from a preset. The same command goes on with a run that was interrupted.",
    )
    parser.add_argument("method", metavar="METHOD", help="a folder of agentic/")
    parser.add_argument("--engine", choices=engines, default=engines[0], help=f"default: {engines[0]}")
    parser.add_argument(
        "--preset",
        default=DEFAULT_PRESETS[engines[0]] if len(engines) == 1 else None,
        help=f"a name in presets/ of the method, or a file (default: {presets})",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="run folder (default: runs/METHOD-PRESET)")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="change a key of the recipe"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the resolved recipe, or slime's job, and stop")
    if "embedded" in engines:
        parser.add_argument("--fresh", action="store_true", help="embedded: delete an earlier run in DIR first")
    if "slime" in engines:
        parser.add_argument("--start-ray", action="store_true", help="slime: start Ray's head here if none answers")
    return parser
