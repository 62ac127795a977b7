"""Runs the comparisons one after the other, prints their tables and writes JSON: `bash benchmarks/speed/run.sh`."""

from __future__ import annotations

import argparse
import json
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from pydantic import PositiveInt
from transformers.utils import logging as transformers_logging

from benchmarks.speed import grpo_step, rollout
from benchmarks.speed.measure import environment
from benchmarks.speed.workload import SIZES, make_checkpoint
from core.options import argparse_type


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks/speed/run.sh", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the work, one repeat: does it run?")
    parser.add_argument("--only", choices=("rollout", "grpo"), help="one of the two comparisons")
    parser.add_argument("--size", choices=tuple(SIZES), default="small", help="the random checkpoint (default: small)")
    parser.add_argument("--threads", type=argparse_type(PositiveInt), default=1)
    parser.add_argument(
        "--repeats", type=argparse_type(PositiveInt), default=3, help="timed repeats after a warm-up (default: 3)"
    )
    parser.add_argument("--no-batching", action="store_true", help="leave out continuous batching, the slowest side")
    parser.add_argument("--output", type=Path, default=Path("runs/speed"), help="folder of the JSON file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    repeats = 1 if args.quick else args.repeats
    vocab_size = SIZES[args.size]["vocab_size"]
    result: dict[str, Any] = {"environment": environment(args.threads), "size": args.size, "repeats": repeats}
    result["quick"] = args.quick
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_checkpoint(args.size, Path(scratch) / "model")
        if args.only != "grpo":
            print(f"rollout ({args.size})")
            result["rollout"] = rollout.compare(
                folder,
                vocab_size,
                repeats=repeats,
                scale=0.25 if args.quick else 1.0,
                with_batching=not args.no_batching,
            )
            print(rollout.as_table(result["rollout"]), flush=True)
        if args.only != "rollout":
            if find_spec("trl") is None:
                parser.error("trl is not installed here: use benchmarks/speed/run.sh, or --only rollout")
            print(f"GRPO step ({args.size})")
            result["grpo_step"] = grpo_step.compare(
                folder,
                vocab_size,
                Path(scratch) / "trl",
                repeats=repeats,
                groups=2 if args.quick else 8,
                group_size=8,
            )
            print(grpo_step.as_table(result["grpo_step"]), flush=True)
    name = "-".join(
        ["quick" if args.quick else "full", args.size, f"{args.threads}t", *([args.only] if args.only else [])]
    )
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
