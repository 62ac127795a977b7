"""The options of `tokentrue train`, which all backends share. Nothing but the standard library is imported here, so
that `--help` and completion are quick and need no installation."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

DEFAULT_PRESETS = {"embedded": "tiny", "slime": "seed", "vime": "seed", "verl": "seed"}
"""Maps a backend to the preset that it takes without --preset."""

BASELINES = ("rejection", "supervised")
"""Names what is trained beside the policy, to compare it with; each is a section of the recipe."""


def make_training_parser(*backends: str) -> argparse.ArgumentParser:
    """Return a parser of the options that at least one of `backends` has; the first is the default."""
    defaults = list(dict.fromkeys(DEFAULT_PRESETS[backend] for backend in backends))
    parser = argparse.ArgumentParser(
        prog="tokentrue train", description="Train a method from a preset. The same command resumes a run."
    )
    add = parser.add_argument
    add("method", metavar="METHOD", help="a name in agentic/, or a folder of your own")
    add(
        "--backend",
        choices=backends,
        default=backends[0],
        metavar="NAME",
        help=f"what trains: {', '.join([f'{backends[0]} (default)', *backends[1:]])}",
    )
    add(
        "--preset",
        default=defaults[0] if len(defaults) == 1 else None,
        help=f"a name in presets/ of the method, or a file (default: {'; on a cluster '.join(defaults)})",
    )
    add("--out", type=Path, metavar="DIR", help="run folder (default: runs/METHOD-PRESET)")
    add("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="change a key of the recipe")
    add("--dry-run", action="store_true", help="print the resolved recipe, or a cluster's job, and stop")
    add("--accept-changes", action="store_true", help="resume although data, models or code have changed")
    if "embedded" in backends:
        add("--baseline", choices=BASELINES, metavar="NAME", help=f"embedded: train {' or '.join(BASELINES)} instead")
        add("--fresh", action="store_true", help="embedded: delete an earlier run in DIR first")
        add("--memory", type=read_bytes, metavar="SIZE", help="embedded: plan for this memory, such as 24GB or 8GiB")
    if set(backends) - {"embedded"}:
        add("--start-ray", action="store_true", help="on a cluster: start Ray's head if none answers")
    return parser


def read_bytes(text: str) -> int:
    """Read a size such as 24GB, 1.5GiB or 800MB; without a unit it counts bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", text.lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 24GB, 8GiB or 800MB")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(prefix or " "))
