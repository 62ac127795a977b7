"""What must hold before a step is timed: both trainers compute the same loss and gradient norm."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from benchmarks.speed import grpo_step
from benchmarks.speed.workload import Sample, make_checkpoint, step_requests


def test_rows_carry_advantages_of_their_own_group():
    samples = [Sample((5,), ids, (-1.0,) * len(ids)) for ids in [(2, 2), (3, 3), (2, 3), (2, 3)]]
    rows = grpo_step.make_rows(samples, group_size=2)
    assert [row.advantage for row in rows] == [0.5, -0.5, 0.0, 0.0]
    assert [row.rollout_id for row in rows] == [0, 1, 2, 3]
    assert rows[0].tokens == (5, 2, 2)


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
def test_the_step_equals_trl_s(kind, tmp_path):
    if find_spec("trl") is None:
        pytest.skip("trl is not installed; benchmarks/speed/run.sh puts it into benchmarks/speed/.venv")
    from benchmarks.speed.trl_side import run_trl

    folder = make_checkpoint("tiny", tmp_path / "model")
    requests = step_requests(kind, 1280, groups=2, group_size=4)
    samples = grpo_step.sample(folder, requests)
    theirs = run_trl(folder, requests, 4, samples, steps=0, lr=grpo_step.LR, output=tmp_path / "trl")
    ours, _ = grpo_step.run_ours(folder, requests, 4, samples, steps=1)
    assert theirs.gradient_norms[0] > 0.01
    grpo_step.check_equal(kind, ours, {"loss": theirs.losses[0], "grad_norm": theirs.gradient_norms[0]})
