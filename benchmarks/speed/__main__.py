"""Run the comparisons one after the other, print their tables and write JSON (`bash benchmarks/speed/run.sh`)."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from pydantic import PositiveInt
from transformers.utils import logging as transformers_logging

from benchmarks.speed import grpo_step, rollout
from benchmarks.speed.measure import describe_environment
from benchmarks.speed.workload import SIZES, make_checkpoint
from core.options import argparse_type


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    repeats = 1 if options.quick else options.repeats
    vocab_size = SIZES[options.size]["vocab_size"]
    result: dict[str, Any] = {
        "environment": describe_environment(options.threads),
        "size": options.size,
        "repeats": repeats,
    }
    result["quick"] = options.quick
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_checkpoint(options.size, Path(scratch) / "model")
        if options.only != "grpo":
            print(f"rollout ({options.size})")
            result["rollout"] = rollout.compare(
                folder,
                vocab_size,
                repeats=repeats,
                scale=0.25 if options.quick else 1.0,
                with_batching=not options.no_batching,
            )
            print(rollout.format_table(result["rollout"]), flush=True)
        if options.only != "rollout":
            if find_spec("trl") is None:
                parser.error("trl is not installed here: use benchmarks/speed/run.sh, or --only rollout")
            print(f"GRPO step ({options.size})")
            result["grpo_step"] = grpo_step.compare(
                folder,
                vocab_size,
                Path(scratch) / "trl",
                repeats=repeats,
                groups=2 if options.quick else 8,
                group_size=8,
            )
            print(grpo_step.format_table(result["grpo_step"]), flush=True)
    name = "-".join(
        [
            "quick" if options.quick else "full",
            options.size,
            f"{options.threads}t",
            *([options.only] if options.only else []),
        ]
    )
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"wrote {path}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue speed engines", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the work, one repeat: does it run?")
    parser.add_argument("--only", choices=("rollout", "grpo"), help="one of the two comparisons")
    parser.add_argument("--size", choices=tuple(SIZES), default="small", help="the random checkpoint (default: small)")
    parser.add_argument("--threads", type=argparse_type(PositiveInt), default=1)
    parser.add_argument(
        "--repeats", type=argparse_type(PositiveInt), default=3, help="timed repeats after a warm-up (default: 3)"
    )
    parser.add_argument("--no-batching", action="store_true", help="leave out continuous batching, the slowest side")
    parser.add_argument("--output", type=Path, default=Path("runs/speed"), help="folder of the JSON file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
