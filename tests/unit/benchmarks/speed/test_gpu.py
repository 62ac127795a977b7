"""The benchmark of a GPU, on the CPU and in its smallest shapes."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.speed.gpu import QUICK, count_weights, main, make_model
from core.runs.files import read_json


def test_every_part_is_measured_and_written(tmp_path: Path, capsys) -> None:
    out = tmp_path / "gpu.json"
    assert main(["--quick", "--device", "cpu", "--out", str(out)]) == 0
    result = read_json(out)
    assert [row["batch"] for row in result["decode"]] == [1, 3]
    assert all(row["of_limit"] > 0 for row in result["decode"])
    assert 3 * 100 <= result["serve"][0]["output_tokens"] <= 3 * 110
    assert result["train"][0]["tokens"] == 512
    assert result["train"][0]["mfu"] > 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("GB/s", "ms_per_step", "output_tokens", "mfu"))


def test_an_embedding_that_is_only_looked_up_is_not_multiplied() -> None:
    tied = make_model(QUICK, torch.device("cpu"))
    untied = make_model({**QUICK, "tie_word_embeddings": False}, torch.device("cpu"))
    assert count_weights(tied) == count_weights(untied)
    assert count_weights(tied) == sum(parameter.numel() for parameter in tied.parameters())
