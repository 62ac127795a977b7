"""The choice of the number format, from given speeds, and numbers too small to compute with: nothing here is timed."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from core.engine import arithmetic, weights
from core.engine.arithmetic import Speeds, choose_dtype, flush_subnormals

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("speeds", "chosen"),
    [
        (Speeds((60, 74, 83), (151, 342, 385)), "bfloat16"),  # width 576 on a Zen 4, which has bfloat16 instructions
        (Speeds((54, 69, 72), (9, 9, 9)), "float32"),  # width 576 on a Zen 3, which has none
        (Speeds((50, 60, 70), (60, 70, 90)), "float32"),  # faster, but not clearly
        (Speeds((50, 60, 70), (40, 120, 240)), "bfloat16"),  # slower at few rows, faster over all
    ],
)
def test_bfloat16_must_be_clearly_faster(speeds: Speeds, chosen: str) -> None:
    assert speeds.choose() == chosen


def test_the_probe_leaves_threads_and_random_numbers_alone(qwen2):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    arithmetic.measure_speeds.cache_clear()
    dtype, reason = choose_dtype(weights.load_config(qwen2), CPU)
    assert dtype in arithmetic.DTYPES
    assert "GFLOP/s at 16/64/256 rows" in reason
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("known", "chosen"), [(True, "bfloat16"), (False, "float32")])
def test_a_gpu_is_not_timed(qwen2, monkeypatch, known, chosen):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: known)
    monkeypatch.setattr(arithmetic, "measure_speeds", None)
    assert choose_dtype(weights.load_config(qwen2), torch.device("cuda"))[0] == chosen


SCRIPT = """
import torch
from core.engine import flush_subnormals
torch.set_num_threads(2)
with flush_subnormals():
    print((torch.full((4_000_000,), 1e-30) * 1e-9).count_nonzero().item())
"""


def test_subnormals_are_0_in_every_thread_that_begins_inside_and_only_there() -> None:
    small = torch.tensor([1e-30])
    with flush_subnormals():
        with flush_subnormals():
            pass
        assert small * 1e-9 == 0
    assert small * 1e-9 != 0
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
