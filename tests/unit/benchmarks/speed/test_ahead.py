"""The comparison of runs in turn and runs ahead, with delays of a millisecond."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed import ahead


def test_the_table_has_a_row_for_each_run_and_the_age_of_its_weights(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ahead, "MEDIAN_S", 1e-3)
    assert ahead.main(["--steps", "2", "--seeds", "1", "--ahead", "0", "1"]) == 0
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    rows, trained = cells[2:4], cells[6:]
    assert [row[0] for row in trained] == ["0", "1"]
    assert trained[0][2] == "1"
    assert 0 <= float(trained[1][2]) <= 1
    assert [(row[0], row[-1]) for row in rows] == [("0", "0"), ("1", "1")]
    assert all(float(row[3]) > 0 for row in rows)


def test_a_frozen_policy_gives_the_same_lengths_whatever_runs_ahead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ahead, "MEDIAN_S", 1e-3)
    model = ahead.make_checkpoint("tiny", tmp_path / "model")
    runs = ahead.run_all([(0, 0), (1, 0), (2, 0)], model, tmp_path, steps=4, frozen=True, at_once=False)
    first, *others = (sorted(run.lengths) for run in runs)
    assert others == [first, first]
    (trained,) = ahead.run_all([(0, 0)], model, tmp_path / "trained", steps=4, frozen=False, at_once=False)
    assert sorted(trained.lengths) != first


def test_equal_samples_are_told_from_others() -> None:
    rng = np.random.default_rng(0)
    same = [ahead.compare_samples(rng.lognormal(size=900), rng.lognormal(size=700)) for _ in range(300)]
    assert 0.03 < np.mean([p < 0.1 for p in same]) < 0.17, "p is uniform where the samples have one distribution"
    assert ahead.compare_samples(rng.lognormal(size=900), rng.lognormal(0.3, size=700)) < 1e-3
