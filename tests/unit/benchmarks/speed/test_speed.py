"""Every side of a comparison returns the tokens or takes the step that is timed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from benchmarks.speed import grpo_step, rollout
from benchmarks.speed.__main__ import main
from benchmarks.speed.engines import EmbeddedSide, TransformersSide, max_logprob_error
from benchmarks.speed.rollout import TOLERANCE
from benchmarks.speed.workload import GenerationRequest, make_checkpoint, make_step_requests
from core.engine import weights
from tests.kit import require

REQUESTS = [GenerationRequest(*r) for r in (((5, 6, 7), 4), (tuple(range(10, 40)), 9), ((5, 6, 7), 1))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("tiny", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def hf(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.mark.parametrize("side", ["ours", "static", "dynamic"])
def test_every_side_returns_the_requested_tokens_and_exact_logprobs(side, folder, hf):
    if side == "ours":
        generate = EmbeddedSide(weights.load(folder), len(REQUESTS), 64).generate
    else:
        generate = TransformersSide(hf, side).generate
    samples = generate(REQUESTS)
    assert [s.prompt_ids for s in samples] == [r.prompt_ids for r in REQUESTS]
    assert [len(s.token_ids) for s in samples] == [r.max_new_tokens for r in REQUESTS]
    assert max_logprob_error(hf, samples) <= TOLERANCE["float32"]


def test_wrong_logprobs_are_noticed(folder, hf):
    samples = EmbeddedSide(weights.load(folder), len(REQUESTS), 64).generate(REQUESTS)
    shifted = replace(samples[0], logprobs=tuple(value - 1e-3 for value in samples[0].logprobs))
    assert max_logprob_error(hf, [shifted, *samples[1:]]) == pytest.approx(1e-3, rel=0.05)


def test_the_command_names_its_file_by_the_dtype_and_refuses_what_is_no_regime(monkeypatch, tmp_path):
    monkeypatch.setattr(rollout, "compare", lambda folder, **options: {})
    words = ["--quick", "--size", "tiny", "--only", "rollout", "--output", str(tmp_path)]
    assert [main([*words, "--dtype", dtype]) for dtype in TOLERANCE] == [0, 0]
    names = {f"quick-tiny-1t-rollout{end}.json" for end in ("", "-bfloat16")}
    assert {path.name for path in tmp_path.iterdir()} == names
    with pytest.raises(SystemExit):
        main([*words, "--regimes", "heavy-tailed"])


@pytest.mark.parametrize("name", ["loss", "grad_norm"])
def test_a_difference_stops_the_benchmark(name):
    same = {"loss": 0.1, "grad_norm": 0.2}
    grpo_step.check_equal("equal", {"ours": same, "TRL": same})
    for wrong in (0.3, float("nan")):
        with pytest.raises(RuntimeError, match=f"{name} .* with TRL; .* no time is told"):
            grpo_step.check_equal("equal", {"ours": same, "TRL": {**same, name: wrong}})


@pytest.mark.parametrize("kind", grpo_step.KINDS)
@pytest.mark.parametrize("other", ["transformers' layers", pytest.param("TRL", marks=pytest.mark.optional)])
def test_a_step_of_another_side_equals_ours(other, kind, folder, tmp_path):
    requests = make_step_requests(kind, 1280, groups=2, group_size=4)
    samples = grpo_step.sample_rollouts(folder, requests)
    step = partial(grpo_step.run_embedded, requests=requests, group_size=4, samples=samples, steps=1)
    if other == "TRL":
        require(find_spec("trl"), "needs trl: benchmarks/speed/run.sh installs it into benchmarks/speed/.venv")
        run = grpo_step.run_trl(folder, requests, 4, samples, steps=0, lr=grpo_step.LR, output=tmp_path / "trl")
        theirs = {"loss": run.losses[0], "grad_norm": run.gradient_norms[0]}
    else:
        theirs, _ = step(grpo_step.LAYERS[other](folder))
    assert theirs["grad_norm"] > 0.01
    grpo_step.check_equal(kind, {"ours": step(weights.load(folder))[0], other: theirs})
