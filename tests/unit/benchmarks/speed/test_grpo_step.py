"""Tests that no step is timed unless both trainers compute the same loss and gradient norm."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

import pytest

from benchmarks.speed import grpo_step
from benchmarks.speed.workload import make_checkpoint, make_step_requests
from core.engine import weights
from tests.kit import require


@pytest.mark.parametrize("name", ["loss", "grad_norm"])
def test_a_difference_stops_the_benchmark(name):
    same = {"loss": 0.1, "grad_norm": 0.2}
    grpo_step.check_equal("equal", {"ours": same, "TRL": same})
    for wrong in (0.3, float("nan")):
        with pytest.raises(RuntimeError, match=f"{name} .* with TRL; .* not timed"):
            grpo_step.check_equal("equal", {"ours": same, "TRL": {**same, name: wrong}})


@pytest.mark.parametrize("kind", grpo_step.KINDS)
def test_a_step_over_the_layers_of_transformers_equals_ours(kind, tmp_path):
    folder = make_checkpoint("tiny", tmp_path / "model")
    requests = make_step_requests(kind, 1280, groups=2, group_size=4)
    samples = grpo_step.sample_rollouts(folder, requests)
    step = partial(grpo_step.run_embedded, requests=requests, group_size=4, samples=samples, steps=1)
    first = {side: step(load(folder))[0] for side, load in grpo_step.LAYERS.items()}
    assert first["ours"]["grad_norm"] > 0.01
    grpo_step.check_equal(kind, first)


@pytest.mark.optional
@pytest.mark.parametrize("kind", grpo_step.KINDS)
def test_our_step_equals_that_of_trl(kind, tmp_path):
    require(find_spec("trl"), "needs trl: benchmarks/speed/run.sh installs it into benchmarks/speed/.venv")
    from benchmarks.speed.grpo_step import run_trl

    folder = make_checkpoint("tiny", tmp_path / "model")
    requests = make_step_requests(kind, 1280, groups=2, group_size=4)
    samples = grpo_step.sample_rollouts(folder, requests)
    theirs = run_trl(folder, requests, 4, samples, steps=0, lr=grpo_step.LR, output=tmp_path / "trl")
    model = weights.load(folder)
    ours, _ = grpo_step.run_embedded(model, requests=requests, group_size=4, samples=samples, steps=1)
    assert theirs.gradient_norms[0] > 0.01
    first = {"loss": theirs.losses[0], "grad_norm": theirs.gradient_norms[0]}
    grpo_step.check_equal(kind, {"ours": ours, "TRL": first})
