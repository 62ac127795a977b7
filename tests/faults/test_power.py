"""Power is lost at every point of a save, of appends and of a replacement: what was reported as written is there."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from core.engine import weights
from core.hub import CheckpointError
from core.runs.files import JsonlLog, read_json, read_jsonl, write_json
from core.train import checkpoint
from tests import kit
from tests.faults.power import PowerLoss


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.save_model(tmp_path_factory.mktemp("start") / "model", seed=0, num_hidden_layers=1)


def test_a_run_resumes_with_every_record_before_its_checkpoint(start: Path, tmp_path: Path) -> None:
    model, reader = weights.load(start), weights.load(start)
    (tmp_path / "disk").mkdir()
    (tmp_path / "left").mkdir()
    run = tmp_path / "disk" / "run" / "seed-0"
    reported = 0

    def check(left: Path) -> None:
        folder = left / "run" / "seed-0"
        newest = checkpoint.latest(folder / "checkpoints")
        step = checkpoint.load(newest, reader)["step"] if newest else 0
        steps = [record["step"] for record in read_jsonl(folder / "metrics.jsonl")]
        assert step >= reported
        assert steps[:step] == list(range(1, step + 1))

    disk = PowerLoss(tmp_path / "disk", tmp_path / "left", check)
    with disk.recording():
        metrics = JsonlLog(run / "metrics.jsonl")
        for step in (1, 2, 3, 4):
            metrics.append({"step": step})
            metrics.sync()
            checkpoint.save(run / "checkpoints", step, model, start, {})
            reported = step
    assert disk.points > 80


def test_a_file_that_is_replaced_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "left").mkdir()
    path = tmp_path / "disk" / "new folder" / "summary.json"
    reported = 0

    def check(left: Path) -> None:
        found = left / "new folder" / "summary.json"
        assert (read_json(found)["version"] if found.exists() else 0) >= reported

    disk = PowerLoss(tmp_path / "disk", tmp_path / "left", check)
    with disk.recording():
        for version in (1, 2, 3):
            write_json(path, {"version": version})
            reported = version
    assert disk.points >= 18


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.95, 1.2])
def test_a_disk_that_is_full_at_any_point_leaves_the_checkpoint_before(
    start: Path, tmp_path: Path, share: float
) -> None:
    model = weights.load(start)
    saved = checkpoint.save(tmp_path, 1, model, start, {})
    room = int(share * max(path.stat().st_size for path in saved.iterdir()))
    told = nullcontext() if share > 1 else pytest.raises(CheckpointError, match="Free space and run again")
    with kit.room_for(room), told:
        checkpoint.save(tmp_path, 2, model, start, {})
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    assert checkpoint.load(newest, model)["step"] == (2 if share > 1 else 1)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
