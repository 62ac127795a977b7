"""Run the comparisons one after the other, print their tables and write JSON (`bash benchmarks/speed/run.sh`).

With --model all sides run that checkpoint, and the step is ours alone, in the shapes of MemAgent's preset `laptop`. The
same work measures the `core` of another commit, if Python finds that one first; the JSON says which it was:

    git worktree add /tmp/before COMMIT && mkdir /tmp/first && ln -s /tmp/before/core /tmp/first/core
    PYTHONSAFEPATH=1 PYTHONPATH=/tmp/first:. .venv/bin/python -m benchmarks.speed --model DIR --no-batching
"""

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
from benchmarks.speed.measure import align_columns, describe_environment
from benchmarks.speed.workload import SIZES, make_checkpoint
from core.engine import weights
from core.options import argparse_type


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.compile and not options.model:
        parser.error("--compile goes with --model")
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
        "compile": options.compile,
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.model or make_checkpoint(options.size, Path(scratch) / "model")
        if options.only != "grpo":
            print(f"rollout ({name}, {options.dtype})")
            result["rollout"] = rollout.compare(
                folder,
                read_vocab_size(folder),
                repeats=result["repeats"],
                scale=0.25 if options.quick or options.model else 1.0,
                with_batching=not options.no_batching,
                dtype=options.dtype,
                only=options.regimes or (),
                vllm_python=options.vllm_python,
            )
            print(rollout.format_table(result["rollout"]), flush=True)
        if options.only != "rollout":
            print(f"GRPO step ({name}, {options.dtype})")
            result["grpo_step"] = measure_step(parser, options, folder, Path(scratch) / "trl")
    words = [
        "quick" if options.quick else "full",
        name,
        f"{options.threads}t",
        options.only,
        "compile" * options.compile,
    ]
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"{'-'.join(filter(None, words))}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"wrote {path}")
    return 0


def measure_step(parser: argparse.ArgumentParser, options: argparse.Namespace, folder: Path, scratch: Path) -> Any:
    """Compare our step with TRL's or, with --model, measure ours in the shapes of MemAgent's preset `laptop`."""
    repeats, vocab_size = 1 if options.quick else options.repeats, read_vocab_size(folder)
    if options.model:
        groups = 2 if options.quick else 8
        step = grpo_step.measure_sections(
            folder, vocab_size, repeats=repeats, groups=groups, dtype=options.dtype, compiled=options.compile
        )
        shown = {key: f"{value:.5g}" for key, value in step.items() if not isinstance(value, list)}
        print(align_columns([*shown], [[*shown.values()]]), flush=True)
        return {"sections": step}
    if find_spec("trl") is None:
        parser.error("trl is not installed here: use benchmarks/speed/run.sh, --only rollout, or --model")
    groups = 2 if options.quick else 8
    result = grpo_step.compare(folder, vocab_size, scratch, repeats=repeats, groups=groups, group_size=8)
    print(grpo_step.format_table(result), flush=True)
    return result


def read_vocab_size(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["vocab_size"])


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue speed engines", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a quarter of the work, one repeat: does it run?")
    parser.add_argument("--only", choices=("rollout", "grpo"), help="one of the two comparisons")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--size", choices=tuple(SIZES), default="small", help="the random checkpoint (default: small)")
    chosen.add_argument("--model", type=Path, metavar="DIR", help="a real checkpoint, on a quarter of the requests")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="with --model")
    parser.add_argument("--compile", action="store_true", help="model.compile for our step, with --model")
    parser.add_argument("--regimes", nargs="+", metavar="NAME", help="of the rollout comparison (default: all)")
    parser.add_argument("--threads", type=argparse_type(PositiveInt), default=1)
    parser.add_argument(
        "--repeats", type=argparse_type(PositiveInt), default=3, help="timed repeats after a warm-up (default: 3)"
    )
    parser.add_argument("--no-batching", action="store_true", help="leave out continuous batching, the slowest side")
    parser.add_argument("--vllm-python", metavar="FILE", help="vLLM too; made by tests/optional/vllm_cpu/setup.sh")
    parser.add_argument("--output", type=Path, default=Path("runs/speed"), help="folder of the JSON file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
