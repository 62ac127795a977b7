"""Seeds side by side: the numbers are those of one after the other, and no worker outlives its parent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import kit
from tests.e2e.conftest import Launcher
from tests.e2e.test_resume import arguments, assert_same_run, records, weights_moved

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

SEEDS = (3, 4)
RECIPE = [
    f"run.seeds={list(SEEDS)}", "run.steps=4", "run.save_every=1",
    "warm_start.steps=2", "warm_start.copy_steps=1", "warm_start.lookup_steps=1", "warm_start.batch_size=4",
]  # fmt: skip
PARALLEL = [*RECIPE, "run.parallel_seeds=2"]


@pytest.fixture(scope="module")
def one_by_one(launcher: Launcher, preset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("one-by-one") / "run"
    launcher.run(arguments(preset, run, RECIPE))
    assert weights_moved(run)
    assert records(run / "seed-3" / "metrics.jsonl") != records(run / "seed-4" / "metrics.jsonl")
    return run


@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
def test_workers_end_with_a_parent_that_is_killed(launcher: Launcher, preset: Path, tmp_path: Path, one_by_one: Path):
    """Once while the workers start, once while all of them train; the run that resumes is as one never touched."""
    run = tmp_path / "run"
    command = arguments(preset, run, PARALLEL)

    pid = launcher.start(command)
    kit.wait_until(lambda: len(kit.list_descendants(pid)) > len(SEEDS), 60)  # and the resource tracker
    workers = kit.list_descendants(pid)
    launcher.kill(pid)
    assert launcher.wait() == -9
    kit.wait_until(lambda: not any(map(kit.is_running, workers)), 30)  # each first ends its imports

    pid = launcher.start(command)
    kit.wait_until(lambda: all(trains(run / f"seed-{seed}") for seed in SEEDS), 60)
    workers = kit.list_descendants(pid)
    assert len(workers) >= len(SEEDS)
    launcher.kill(pid)
    assert launcher.wait() == -9
    kit.wait_until(lambda: not any(map(kit.is_running, workers)), 10)
    assert not all((run / f"seed-{seed}" / "checkpoints" / "step-000004").is_dir() for seed in SEEDS)

    launcher.run(command)
    assert_same_run(run, one_by_one)


def trains(seed: Path) -> bool:
    metrics = seed / "metrics.jsonl"
    return metrics.is_file() and '"train"' in metrics.read_text()
