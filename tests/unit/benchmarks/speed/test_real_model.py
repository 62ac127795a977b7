"""The benchmark on a checkpoint that is given: our rollout and step in the shapes of MemAgent's preset `laptop`."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.speed.__main__ import main
from benchmarks.speed.workload import make_checkpoint
from core.runs.files import read_json


def test_a_given_checkpoint_is_measured_and_its_figures_are_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    model = make_checkpoint("tiny", tmp_path / "model")
    options = ["--quick", "--regimes", "sections", "--no-batching", "--dtype", "bfloat16"]
    assert main(["--model", str(model), *options, "--output", str(tmp_path)]) == 0
    written = read_json(tmp_path / "quick-model-1t.json")
    assert (written["size"], written["dtype"]) == ("model", "bfloat16")
    assert Path(written["core"], "engine", "engine.py").is_file()
    ours = written["rollout"]["sections"]["ours"]
    assert (ours["generated_tokens"], ours["logprobs_exact"]) == (12 * 32, True)
    step = written["grpo_step"]["sections"]
    assert (step["rollouts"], step["tokens"]) == (24, 24 * (340 + 32))
    assert step["grad_norm"] > 0
    assert step["tokens_per_cpu_s"] > 0
