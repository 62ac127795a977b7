"""Says how a model is computed: in which number format (`model.dtype: auto`), and with subnormal numbers as 0.

A GPU that knows bfloat16 computes in it. A CPU core whose instructions know it computes wide products several times
faster in it, and a core without them is many times slower, so a CPU is asked: one of the model's products is timed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from statistics import geometric_mean
from typing import NamedTuple

import torch
import torch.nn.functional as F

from core.engine.model import ModelConfig

DTYPES = ("float32", "bfloat16")
ROWS = (16, 64, 256)
"""Lists the rows of the timed products, from a decode step of few sequences to a prefill."""
LARGEST = (1024, 2048)
"""Limits width and outputs of the timed product, so that the largest model costs half a second at most."""
CLEARLY_FASTER = 1.5
"""Says how many times faster bfloat16 must be: it is less precise, and only the matrix products gain."""


class Speeds(NamedTuple):
    """Holds what each number format reached, in GFLOP/s of one thread, an entry for each of `ROWS`."""

    float32: tuple[float, ...]
    bfloat16: tuple[float, ...]

    def choose(self) -> str:
        """Return the number format to compute in: bfloat16 only where it is clearly faster."""
        ratios = [bfloat16 / float32 for float32, bfloat16 in zip(*self, strict=True)]
        return "bfloat16" if geometric_mean(ratios) >= CLEARLY_FASTER else "float32"

    def __str__(self) -> str:
        shown = (f"{name} {'/'.join(f'{speed:.0f}' for speed in getattr(self, name))}" for name in DTYPES)
        return f"{', '.join(shown)} GFLOP/s at {'/'.join(map(str, ROWS))} rows"


@cache
def measure_speeds(config: ModelConfig) -> Speeds:
    """Time x [rows, C] times the weights of the model's MLP on this CPU in every number format, in 0.1 to 0.5 s.

    A process measures a model once, so that all its copies of the model compute alike.
    """
    width, outputs = min(config.hidden_size, LARGEST[0]), min(config.intermediate_size, LARGEST[1])
    return Speeds(*(tuple(_time_linear(rows, width, outputs, dtype) for rows in ROWS) for dtype in DTYPES))


@torch.inference_mode()
def _time_linear(rows: int, width: int, outputs: int, dtype: str) -> float:
    x_TC = torch.ones(rows, width, dtype=getattr(torch, dtype))
    weight = torch.ones(outputs, width, dtype=x_TC.dtype)
    threads, seconds = torch.get_num_threads(), []
    try:
        torch.set_num_threads(1)
        for _ in range(4):  # the first call prepares the kernel; of the others the best is the least disturbed
            started = time.thread_time()  # of this one thread: other programs do not change it
            F.linear(x_TC, weight)
            seconds.append(time.thread_time() - started)
    finally:
        torch.set_num_threads(threads)
    return 2e-9 * rows * width * outputs / min(seconds)


def choose_dtype(config: ModelConfig, device: torch.device) -> tuple[str, str]:
    """Return the number format that suits a model on `device`, and the reason in a few words."""
    if device.type == "cuda":
        # A small product on a GPU times its launch: an H100 was given float32 by it.
        known = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bfloat16", f"{device} knows bfloat16") if known else ("float32", f"{device} does not know bfloat16")
    speeds = measure_speeds(config)
    return speeds.choose(), str(speeds)


@contextmanager
def flush_subnormals() -> Iterator[None]:
    """Take subnormal numbers (in float32, those below 1.2e-38) for 0, in this thread and those that it starts inside.

    The smallest probabilities of attention are such numbers, with which a CPU computes many times slower: a training
    step of a small sharp model takes half the time without them. A sum changes only if it is itself below about 1e-30.
    Threads that began inside keep this afterwards.
    """
    flushed = sys.float_info.min / 2 == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)
