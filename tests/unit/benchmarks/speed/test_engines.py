"""Tests that every side returns the requested number of tokens, with log-probs that a full forward confirms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from benchmarks.speed import rollout
from benchmarks.speed.__main__ import main
from benchmarks.speed.engines import EmbeddedSide, TransformersSide, max_logprob_error
from benchmarks.speed.rollout import TOLERANCE
from benchmarks.speed.workload import GenerationRequest, make_checkpoint
from core.engine import weights

REQUESTS = [
    GenerationRequest((5, 6, 7), 4),
    GenerationRequest(tuple(range(10, 40)), 9),
    GenerationRequest((5, 6, 7), 1),
]


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
    error = max_logprob_error(hf, samples)
    assert error is not None
    assert error <= TOLERANCE["float32"]


def test_wrong_or_missing_logprobs_are_noticed(folder, hf):
    samples = EmbeddedSide(weights.load(folder), len(REQUESTS), 64).generate(REQUESTS)
    shifted = replace(samples[0], logprobs=tuple(value - 1e-3 for value in samples[0].logprobs))
    assert max_logprob_error(hf, [shifted, *samples[1:]]) == pytest.approx(1e-3, rel=0.05)
    assert max_logprob_error(hf, [replace(samples[0], logprobs=()), *samples[1:]]) is None


def test_the_command_names_its_file_by_the_dtype_and_refuses_what_is_no_regime(monkeypatch, tmp_path):
    monkeypatch.setattr(rollout, "compare", lambda folder, **options: {})
    words = ["--quick", "--size", "tiny", "--only", "rollout", "--output", str(tmp_path)]
    assert [main([*words, "--dtype", dtype]) for dtype in TOLERANCE] == [0, 0]
    names = {f"quick-tiny-1t-rollout{end}.json" for end in ("", "-bfloat16")}
    assert {path.name for path in tmp_path.iterdir()} == names
    with pytest.raises(SystemExit):
        main([*words, "--regimes", "heavy-tailed"])
