"""Tests that no step is timed unless both trainers compute the same loss and gradient norm."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from benchmarks.speed import grpo_step
from benchmarks.speed.workload import make_checkpoint, make_step_requests
from tests.kit import require


@pytest.mark.parametrize("name", ["loss", "grad_norm"])
def test_a_difference_stops_the_benchmark(name):
    same = {"loss": 0.1, "grad_norm": 0.2}
    grpo_step.check_equal("equal", same, same)
    with pytest.raises(RuntimeError, match=f"{name} .* not timed"):
        grpo_step.check_equal("equal", {**same, name: 0.3}, same)
    with pytest.raises(RuntimeError, match="not timed"):
        grpo_step.check_equal("equal", {**same, name: float("nan")}, same)


@pytest.mark.optional
@pytest.mark.parametrize("kind", grpo_step.KINDS)
def test_our_step_equals_that_of_trl(kind, tmp_path):
    require(find_spec("trl"), "needs trl: benchmarks/speed/run.sh installs it into benchmarks/speed/.venv")
    from benchmarks.speed.trl_side import run_trl

    folder = make_checkpoint("tiny", tmp_path / "model")
    requests = make_step_requests(kind, 1280, groups=2, group_size=4)
    samples = grpo_step.sample_rollouts(folder, requests)
    theirs = run_trl(folder, requests, 4, samples, steps=0, lr=grpo_step.LR, output=tmp_path / "trl")
    ours, _ = grpo_step.run_embedded(folder, requests, 4, samples, steps=1)
    assert theirs.gradient_norms[0] > 0.01
    grpo_step.check_equal(kind, ours, {"loss": theirs.losses[0], "grad_norm": theirs.gradient_norms[0]})
