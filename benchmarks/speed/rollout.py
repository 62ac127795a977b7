"""Compare rollout throughput: our engine, `model.generate` (static and dynamic cache), vLLM.

The regimes are distinct prompts, groups on one prompt, heavy-tailed lengths, and sessions of five turns. A row whose
log-probs differ by more than 1e-5 from those of a full forward is marked.

The same work measures the `core` of another commit, if Python finds that one first; the JSON says which it was:

    git worktree add /tmp/before COMMIT && mkdir /tmp/first && ln -s /tmp/before/core /tmp/first/core
    PYTHONSAFEPATH=1 PYTHONPATH=/tmp/first:. .venv/bin/python -m benchmarks.speed.rollout --model DIR
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import PositiveInt
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from benchmarks.speed.engines import EmbeddedSide, Generate, TransformersSide, max_logprob_error
from benchmarks.speed.measure import Timing, align_columns, describe_environment, ratio, repeat
from benchmarks.speed.vllm_side import run_vllm
from benchmarks.speed.workload import (
    OBSERVATION,
    SESSION_TURNS,
    SIZES,
    GenerationRequest,
    GenerationSample,
    make_checkpoint,
    make_regimes,
    run_turns,
)
from core.engine import weights
from core.options import argparse_type
from core.runs.files import write_json

TOLERANCE = {"float32": 1e-5, "bfloat16": 0.5}
"""Limits the difference of log-probs, in nats; one token of thousands may differ much in bfloat16."""
OURS = "ours"


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    name = options.model.name if options.model else options.size
    print(f"rollout ({name}, {options.dtype})")
    result: dict[str, Any] = {
        "environment": describe_environment(options.threads),
        "core": str(Path(weights.__file__).parents[1]),
        "size": name,
        "dtype": options.dtype,
        "repeats": 1 if options.quick else options.repeats,
        "quick": options.quick,
    }
    with tempfile.TemporaryDirectory() as scratch:
        result["rollout"] = compare(
            options.model or make_checkpoint(options.size, Path(scratch)),
            options.dtype,
            repeats=result["repeats"],
            scale=0.25 if options.quick or options.model else 1.0,
            only=options.regimes or (),
            vllm_python=options.vllm_python,
        )
    print(format_table(result["rollout"]), flush=True)
    path = options.output / f"{'quick' if options.quick else 'full'}-{name}-{options.threads}t.json"
    write_json(path, result)
    print(f"wrote {path}")
    return 0


def compare(
    folder: Path, dtype: str, *, repeats: int, scale: float, only: Sequence[str], vllm_python: str | None
) -> dict[str, Any]:
    """Run every regime, or those of `only`, on every side; on vLLM too if its interpreter is given.

    Returns seconds, tokens per second, log-prob error and ratios to ours, as JSON.
    """
    hf = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    model = weights.load(folder, dtype).eval()
    vocab_size = model.config.vocab_size
    result: dict[str, Any] = {}
    for regime, requests in make_regimes(vocab_size, scale=scale).items():
        if only and regime not in only:
            continue
        turns = SESSION_TURNS if regime == "sessions" else 1
        longest = longest_sequence(requests, turns)
        ours = EmbeddedSide(model, len(requests), longest)
        sides: dict[str, Generate] = {
            OURS: ours.generate,
            "generate static": TransformersSide(hf, "static").generate,
            "generate dynamic": TransformersSide(hf, "dynamic").generate,
        }
        runs: dict[str, Callable[[], tuple[list[GenerationSample], Timing]]] = {
            side: partial(repeat, partial(run_turns, generate, requests, turns, vocab_size), repeats, before=ours.reset)
            for side, generate in sides.items()
        }
        if vllm_python:
            runs["vLLM"] = partial(run_vllm, vllm_python, folder, dtype, requests, turns, vocab_size, repeats, longest)
        rows: dict[str, dict[str, Any]] = {}
        timings: dict[str, Timing] = {}
        for side, run in runs.items():
            samples, timings[side] = run()
            rows[side] = _measure_side(timings[side], samples, max_logprob_error(hf, samples), TOLERANCE[dtype])
            print(f"  {regime}, {side}: {rows[side]['tokens_per_cpu_s']:.0f} tokens per CPU second", flush=True)
        if len({row["generated_tokens"] for row in rows.values()}) != 1:
            raise RuntimeError(f"{regime}: the sides generated different numbers of tokens")
        for side, row in rows.items():
            row["ratio"] = ratio(timings[OURS], timings[side])
        result[regime] = rows
    return result


def _measure_side(
    timing: Timing, samples: Sequence[GenerationSample], error: float | None, tolerance: float
) -> dict[str, Any]:
    seconds = timing.as_json()
    tokens = sum(len(s.token_ids) for s in samples)
    return {
        **seconds,
        "generated_tokens": tokens,
        "tokens_per_cpu_s": tokens / seconds["cpu_s"],
        "logprob_error": error,
        "logprobs_exact": error is not None and error <= tolerance,
    }


def longest_sequence(requests: Sequence[GenerationRequest], turns: int) -> int:
    return max(len(r.prompt_ids) + turns * r.max_new_tokens + (turns - 1) * OBSERVATION for r in requests)


def format_table(result: dict[str, Any]) -> str:
    rows = [
        [
            regime,
            side,
            f"{row['tokens_per_cpu_s']:.0f}",
            f"{row['cpu_s']:.2f}",
            f"{row['wall_s']:.2f}",
            _format_error(row),
            "" if side == OURS else f"{row['ratio']['cpu_s']:.2f} / {row['ratio']['wall_s']:.2f}",
        ]
        for regime, sides in result.items()
        for side, row in sides.items()
    ]
    header = ["regime", "side", "tokens/CPU s", "CPU s", "wall s", "log-prob error", "ours faster by (CPU / wall)"]
    return align_columns(header, rows)


def _format_error(row: dict[str, Any]) -> str:
    if row["logprob_error"] is None:
        return "NO LOG-PROBS"
    return f"{row['logprob_error']:.1e}" + ("" if row["logprobs_exact"] else " NOT EXACT")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue speed engines", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a quarter of the work, one repeat: does it run?")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--size", choices=tuple(SIZES), default="small", help="the random checkpoint (default: small)")
    chosen.add_argument("--model", type=Path, metavar="DIR", help="a real checkpoint, on a quarter of the requests")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--regimes", nargs="+", metavar="NAME", help="some of the regimes (default: all)")
    parser.add_argument("--threads", type=argparse_type(PositiveInt), default=1)
    parser.add_argument(
        "--repeats", type=argparse_type(PositiveInt), default=3, help="timed repeats after a warm-up (default: 3)"
    )
    parser.add_argument("--vllm-python", metavar="FILE", help="vLLM too; made by tests/optional/vllm_cpu/setup.sh")
    parser.add_argument("--output", type=Path, default=Path("runs/speed"), help="folder of the JSON file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
