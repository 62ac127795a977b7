"""Show where the CPU time of our rollout and GRPO step goes, and the ratio to others if only products were paid for.

    tokentrue speed profile                                  # the random checkpoint and the work of run.sh
    tokentrue speed profile --model DIR --dtype bfloat16     # a real one, on a quarter of the work

The ratios are those of the newest fitting file that run.sh wrote. The profiler counts wall time; the tables divide the
CPU time of the profiled runs in the same proportions.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import PositiveInt

from benchmarks.speed.engines import EmbeddedSide
from benchmarks.speed.grpo_step import KINDS, make_rows, make_trainer, sample_rollouts
from benchmarks.speed.measure import align_columns, describe_environment
from benchmarks.speed.ranges import ATTENTION, PRODUCTS, profile_calls
from benchmarks.speed.rollout import longest_sequence
from benchmarks.speed.workload import SESSION_TURNS, SIZES, make_checkpoint, make_regimes, make_step_requests, run_turns
from core.engine import weights
from core.options import argparse_type
from core.runs.files import read_json, write_json

GROUP_SIZE = 8
REGIMES = tuple(make_regimes(vocab_size=4, scale=0.0))


def profile_rollout(folder: Path, dtype: str, regime: str, scale: float, repeats: int) -> dict[str, Any]:
    """Profile our side of the rollout comparison in one regime."""
    model = weights.load(folder, dtype, "cpu").eval()
    vocab_size, turns = model.config.vocab_size, SESSION_TURNS if regime == "sessions" else 1
    requests = make_regimes(vocab_size, scale=scale)[regime]
    ours = EmbeddedSide(model, len(requests), longest_sequence(requests, turns))
    return profile_calls(partial(run_turns, ours.generate, requests, turns, vocab_size), repeats, ours.reset)


def profile_step(folder: Path, dtype: str, kind: str, groups: int, repeats: int) -> dict[str, Any]:
    """Profile our GRPO step on given rollouts of one kind."""
    model = weights.load(folder, dtype, "cpu")
    requests = make_step_requests(kind, model.config.vocab_size, groups, GROUP_SIZE)
    samples, trainer = sample_rollouts(folder, requests), make_trainer(model)
    return profile_calls(lambda: trainer.grpo_step(make_rows(samples, GROUP_SIZE)), repeats)


def find_ratio(folder: Path, pattern: str, dtype: str, *keys: str) -> tuple[float, str] | None:
    """Return how many times our CPU time another side took, and the newest file of run.sh that says so, if any does."""
    for path in sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True):
        entry = result = read_json(path)
        for key in (*keys, "ratio", "cpu_s"):
            entry = entry.get(key) if entry else None
        if entry and result["dtype"] == dtype:
            return float(entry), str(path)
    return None


def format_part(part: dict[str, Any]) -> str:
    """Return the table of one profile, its overhead and its bound."""
    plain_s, profiled_s, wall_s = part["plain"]["cpu_s"], part["profiled"]["cpu_s"], part["profiled"]["wall_s"]
    whole = sum(map(sum, part["seconds"].values()))
    shares = {group: [seconds / whole for seconds in passes] for group, passes in part["seconds"].items()}
    rows = [
        [group, *(f"{profiled_s * share:.3f}" for share in passes), f"{sum(passes):.1%}"]
        for group, passes in shares.items()
        if sum(passes)
    ]
    # The profiler makes every operator longer by about as much. So the share of a few long ones seems too small.
    profiled = sum(shares[PRODUCTS] + shares[ATTENTION])
    plain = profiled * profiled_s / plain_s
    lines = [
        align_columns(["group", "forward, CPU s", "backward, CPU s", "share"], rows),
        f"CPU s {plain_s:.3f}, with the profiler {profiled_s:.3f} (wall s {wall_s:.3f})",
        f"products and attention: {profiled:.1%} with the profiler, {plain:.1%} of the time without it",
    ]
    if part["ratio"]:
        ratio, path = part["ratio"]
        low, high = sorted([ratio / plain, ratio / profiled])
        lines.append(f"{part['other']} takes {ratio:.2f} times our time ({path})")
        lines.append(f"{low:.2f} to {high:.2f} if all else were free")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    small, repeats = bool(options.quick or options.model), 1 if options.quick else 3
    name = options.model.name if options.model else options.size
    pattern = f"{'quick' if options.quick else 'full'}-{name}-{options.threads}t*.json"
    find = partial(find_ratio, options.out.parent, pattern, options.dtype)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.model or make_checkpoint(options.size, Path(scratch))
        rollout = profile_rollout(folder, options.dtype, options.regime, 0.25 if small else 1.0, repeats)
        step = profile_step(folder, options.dtype, options.kind, 2 if small else 8, repeats)
    other = "generate static"
    rollout |= {"other": other, "ratio": find("rollout", options.regime, other)}
    step |= {"other": "TRL", "ratio": find("grpo_step", options.kind, "train")}
    for title, part in ((f"rollout, {options.regime}", rollout), (f"GRPO step, {options.kind}", step)):
        print(f"{title} ({name}, {options.dtype})\n{format_part(part)}", flush=True)
    environment = describe_environment(options.threads)
    write_json(options.out, {"environment": environment, "rollout": rollout, "grpo_step": step})
    print(f"wrote {options.out}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue speed profile", description=(__doc__ or "").partition("\n")[0])
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--size", choices=tuple(SIZES), default="small", help="the random checkpoint (default: small)")
    chosen.add_argument("--model", type=Path, metavar="DIR", help="a real checkpoint, on a quarter of the work")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--regime", choices=REGIMES, default="distinct", help="of the rollout")
    parser.add_argument("--kind", choices=KINDS, default="distinct", help="of the rollouts of the step")
    parser.add_argument("--threads", type=argparse_type(PositiveInt), default=1)
    parser.add_argument("--quick", action="store_true", help="a quarter of the work, once: does it run?")
    parser.add_argument("--out", type=Path, default=Path("runs/speed/profile.json"), help="beside the files of run.sh")
    return parser


if __name__ == "__main__":
    sys.exit(main())
