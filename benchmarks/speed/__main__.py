"""Run the comparisons one after the other, print their tables and write JSON (`bash benchmarks/speed/run.sh`).

With --model all sides sample from that checkpoint, and no step is measured. The same work measures the `core` of
another commit, if Python finds that one first; the JSON says which it was:

    git worktree add /tmp/before COMMIT && mkdir /tmp/first && ln -s /tmp/before/core /tmp/first/core
    PYTHONSAFEPATH=1 PYTHONPATH=/tmp/first:. .venv/bin/python -m benchmarks.speed --model DIR
"""

from __future__ import annotations

import argparse
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
from benchmarks.speed.workload import EOS, SIZES, make_checkpoint, make_regimes
from core.engine import weights
from core.options import argparse_type
from core.runs.files import write_json


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.model and options.only == "grpo":
        parser.error("the GRPO step has random checkpoints: give --size instead of --model")
    step = options.only != "rollout" and not options.model
    if step and find_spec("trl") is None:
        parser.error("trl is not installed here: use benchmarks/speed/run.sh, --only rollout, or --model")
    torch.set_num_threads(options.threads)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    name = options.model.name if options.model else options.size
    result: dict[str, Any] = {
        "environment": describe_environment(options.threads),
        "core": str(Path(weights.__file__).parents[1]),
        "size": name,
        "dtype": options.dtype,
        "repeats": 1 if options.quick else options.repeats,
        "quick": options.quick,
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.model or make_checkpoint(options.size, Path(scratch) / "model")
        if options.only != "grpo":
            print(f"rollout ({name}, {options.dtype})")
            result["rollout"] = rollout.compare(
                folder,
                repeats=result["repeats"],
                scale=0.25 if options.quick or options.model else 1.0,
                dtype=options.dtype,
                only=options.regimes or (),
                vllm_python=options.vllm_python,
            )
            print(rollout.format_table(result["rollout"]), flush=True)
        if step:
            print(f"GRPO step ({name}, float32)")
            groups = 2 if options.quick else 8
            result["grpo_step"] = grpo_step.compare(
                folder, Path(scratch) / "trl", repeats=result["repeats"], groups=groups, group_size=8
            )
            print(grpo_step.format_table(result["grpo_step"]), flush=True)
    dtype = "" if options.dtype == "float32" else options.dtype
    words = ["quick" if options.quick else "full", name, f"{options.threads}t", options.only, dtype]
    path = options.output / f"{'-'.join(filter(None, words))}.json"
    write_json(path, result)
    print(f"wrote {path}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue speed engines", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="a quarter of the work, one repeat: does it run?")
    add("--only", choices=("rollout", "grpo"), help="one of the two comparisons")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--size", choices=tuple(SIZES), default="small", help="the random checkpoint (default: small)")
    chosen.add_argument("--model", type=Path, metavar="DIR", help="a real checkpoint, on a quarter of the requests")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the rollouts (default: float32)")
    regimes = tuple(make_regimes(EOS + 2, scale=0))
    add("--regimes", nargs="+", choices=regimes, metavar="NAME", help=f"some of {', '.join(regimes)}")
    add("--threads", type=argparse_type(PositiveInt), default=1)
    add("--repeats", type=argparse_type(PositiveInt), default=3, help="timed repeats after a warm-up (default: 3)")
    add("--vllm-python", metavar="FILE", help="vLLM too; made by tests/optional/vllm_cpu/setup.sh")
    add("--output", type=Path, default=Path("runs/speed"), help="folder of the JSON file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
