"""Rollout throughput: our engine, `model.generate` (static and dynamic cache) and transformers' continuous batching.

Regimes: distinct prompts, groups on one prompt, heavy-tailed lengths, sessions of five turns. A row counts when the
log-probs it reports are within 1e-5 of a full forward; otherwise it is marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.speed.engines import ContinuousBatching, Generate, Ours, Transformers, logprob_error
from benchmarks.speed.measure import Timing, ratio, repeat, table
from benchmarks.speed.workload import OBSERVATION, SESSION_TURNS, Sample, SpeedRequest, next_turn, regimes
from core.engine import weights

TOLERANCE = 1e-5
OURS = "ours"


def compare(folder: Path, vocab_size: int, *, repeats: int, scale: float, with_batching: bool) -> dict[str, Any]:
    """Time every regime on every side; return seconds, tokens per second, log-prob error, ratios to ours as JSON."""
    from transformers import AutoModelForCausalLM

    hf = AutoModelForCausalLM.from_pretrained(folder).eval()
    model = weights.load(folder).eval()
    result: dict[str, Any] = {}
    for regime, requests in regimes(vocab_size, scale=scale).items():
        turns = SESSION_TURNS if regime == "sessions" else 1
        ours = Ours(model, len(requests), longest_sequence(requests, turns))
        sides: dict[str, Generate] = {
            OURS: ours.generate,
            "generate static": Transformers(hf, "static").generate,
            "generate dynamic": Transformers(hf, "dynamic").generate,
        }
        if with_batching:
            sides["continuous batching"] = ContinuousBatching(hf).generate
        rows: dict[str, dict[str, Any]] = {}
        timings: dict[str, Timing] = {}
        for side, generate in sides.items():
            once = partial(run_turns, generate, requests, turns, vocab_size)
            samples, timings[side] = repeat(once, repeats, before=ours.reset)
            rows[side] = _row(timings[side], samples, logprob_error(hf, samples))
            print(f"  {regime}, {side}: {rows[side]['tokens_per_cpu_s']:.0f} tokens per CPU second", flush=True)
        if len({row["generated_tokens"] for row in rows.values()}) != 1:
            raise RuntimeError(f"{regime}: the sides generated different numbers of tokens")
        for side, row in rows.items():
            row["ratio"] = ratio(timings[OURS], timings[side])
        result[regime] = rows
    return result


def _row(timing: Timing, samples: Sequence[Sample], error: float | None) -> dict[str, Any]:
    seconds = timing.as_json()
    tokens = sum(len(s.token_ids) for s in samples)
    return {
        **seconds,
        "generated_tokens": tokens,
        "tokens_per_cpu_s": tokens / seconds["cpu_s"],
        "logprob_error": error,
        "logprobs_exact": error is not None and error <= TOLERANCE,
    }


def run_turns(generate: Generate, requests: Sequence[SpeedRequest], turns: int, vocab_size: int) -> list[Sample]:
    """Return all samples of all turns; a turn starts when every session has ended the one before."""
    samples = generate(requests)
    everything = list(samples)
    for turn in range(1, turns):
        samples = generate(next_turn(samples, vocab_size, turn))
        everything += samples
    return everything


def longest_sequence(requests: Sequence[SpeedRequest], turns: int) -> int:
    return max(len(r.prompt_ids) + turns * r.max_new_tokens + (turns - 1) * OBSERVATION for r in requests)


def as_table(result: dict[str, Any]) -> str:
    rows = [
        [
            regime,
            side,
            f"{row['tokens_per_cpu_s']:.0f}",
            f"{row['cpu_s']:.2f}",
            f"{row['wall_s']:.2f}",
            _error(row),
            "" if side == OURS else f"{row['ratio']['cpu_s']:.2f} / {row['ratio']['wall_s']:.2f}",
        ]
        for regime, sides in result.items()
        for side, row in sides.items()
    ]
    header = ["regime", "side", "tokens/CPU s", "CPU s", "wall s", "log-prob error", "ours faster by (CPU / wall)"]
    return table(header, rows)


def _error(row: dict[str, Any]) -> str:
    if row["logprob_error"] is None:
        return "NO LOG-PROBS"
    return f"{row['logprob_error']:.1e}" + ("" if row["logprobs_exact"] else " NOT EXACT")
