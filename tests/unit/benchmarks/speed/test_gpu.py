"""The benchmark of a GPU, on the CPU and in its smallest shapes."""

from __future__ import annotations

from pathlib import Path

from benchmarks.speed.gpu import main
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
