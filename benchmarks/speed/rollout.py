"""Compare rollout throughput: our engine, the same with transformers' layers, `model.generate`, vLLM.

A row whose log-probs differ by more than TOLERANCE from those of a full forward is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.engines import EmbeddedSide, Generate, TransformersSide, max_logprob_error
from benchmarks.speed.measure import Timing, ratio, repeat
from benchmarks.speed.vllm_side import run_vllm
from benchmarks.speed.workload import (
    OBSERVATION,
    SESSION_TURNS,
    GenerationRequest,
    GenerationSample,
    make_regimes,
    run_turns,
)
from core.engine import weights
from core.report.table import markdown

TOLERANCE = {"float32": 1e-5, "bfloat16": 0.5}
"""Limits the difference of log-probs, in nats; one token of thousands may differ much in bfloat16."""
OURS = "ours"


def compare(
    folder: Path,
    *,
    repeats: int,
    scale: float,
    dtype: str = "float32",
    only: Sequence[str] = (),
    vllm_python: str | None = None,
) -> dict[str, Any]:
    """Run every regime, or those of `only`, on every side; on vLLM too if its interpreter is given.

    Returns seconds, tokens per second, log-prob error and ratios to ours, as JSON.
    """
    from transformers import AutoModelForCausalLM

    hf = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    model, other = weights.load(folder, dtype).eval(), weights.load_other(folder, dtype, torch.device("cpu"))
    vocab_size = model.config.vocab_size
    result: dict[str, Any] = {}
    for regime, requests in make_regimes(vocab_size, scale=scale).items():
        if only and regime not in only:
            continue
        turns = SESSION_TURNS if regime == "sessions" else 1
        longest = longest_sequence(requests, turns)
        ours, theirs = (EmbeddedSide(layers, len(requests), longest) for layers in (model, other))

        def reset(engines: Sequence[EmbeddedSide] = (ours, theirs)) -> None:
            for engine in engines:
                engine.reset()

        sides: dict[str, Generate] = {
            OURS: ours.generate,
            "transformers' layers": theirs.generate,
            "generate static": TransformersSide(hf, "static").generate,
            "generate dynamic": TransformersSide(hf, "dynamic").generate,
        }
        runs: dict[str, Callable[[], tuple[list[GenerationSample], Timing]]] = {
            side: partial(repeat, partial(run_turns, generate, requests, turns, vocab_size), repeats, before=reset)
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
    timing: Timing, samples: Sequence[GenerationSample], error: float, tolerance: float
) -> dict[str, Any]:
    seconds = timing.as_json()
    tokens = sum(len(s.token_ids) for s in samples)
    return {
        **seconds,
        "generated_tokens": tokens,
        "tokens_per_cpu_s": tokens / seconds["cpu_s"],
        "logprob_error": error,
        "logprobs_exact": error <= tolerance,
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
            f"{row['logprob_error']:.1e}" + ("" if row["logprobs_exact"] else " NOT EXACT"),
            "" if side == OURS else f"{row['ratio']['cpu_s']:.2f} / {row['ratio']['wall_s']:.2f}",
        ]
        for regime, sides in result.items()
        for side, row in sides.items()
    ]
    header = ["regime", "side", "tokens/CPU s", "CPU s", "wall s", "log-prob error", "ours faster by (CPU / wall)"]
    return markdown(header, *rows)
