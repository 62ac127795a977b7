"""The comparison of runs in turn and runs ahead, with delays of a millisecond."""

from __future__ import annotations

import pytest

from benchmarks.speed import ahead


def test_the_table_has_a_row_for_each_run_and_the_age_of_its_weights(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ahead, "MEDIAN_S", 1e-3)
    assert ahead.main(["--steps", "2", "--seeds", "1", "--ahead", "0", "1"]) == 0
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    assert [(row[0], row[-1]) for row in rows] == [("0", "0"), ("1", "1")]
    assert all(float(row[3]) > 0 for row in rows)
