"""A recorded step, trained on again by another process, ends with the same bits; another reward is compared."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from core.inspect import bundle, replay
from core.inspect.replay import Comparison
from core.runs.files import read_jsonl
from core.runs.record import RecordedRollout, read_rollouts
from tests.e2e.conftest import REPOSITORY, Launcher, environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

EVERYTHING = [
    "run.steps=3", "run.record_every=1", "run.eval_every=0", "algorithm.kl_loss_coef=0.01", "algorithm.kl_coef=0.1",
    "algorithm.num_steps_per_rollout=2", "algorithm.dynamic_sampling=true", "algorithm.max_num_gen_batches=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(launcher: Launcher, preset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps, with a checkpoint at 2 and at 3."""
    out = tmp_path_factory.mktemp("replay") / "run"
    launcher.run(["--preset", str(preset), "--out", str(out), *(a for key in EVERYTHING for a in ("--set", key))])
    return out


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)


def test_a_bundle_replays_bit_for_bit_without_the_run(run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    assert bundle.main([str(run), "--out", str(moved)]) == 0
    recorded = list(read_rollouts(moved / "seed-0/rollouts.jsonl.gz"))
    assert {rollout.step for rollout in recorded} == {3}
    assert any(rollout.metrics.get("reference_kl") for rollout in recorded)
    config = yaml.safe_load((moved / "config.yaml").read_text())
    config["data"] = {"train": "/absent/train.jsonl"}
    config["model"]["path"] = "/absent/model"
    (moved / "config.yaml").write_text(yaml.safe_dump(config))
    drop_sums_of(moved, "config.yaml")
    command = [sys.executable, "-m", "scripts.tokentrue", "inspect", "replay", str(moved), "--reward", "method"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    trained = [record for record in read_jsonl(run / "seed-0/metrics.jsonl") if record["step"] == 3]
    assert f"loss       run {trained[0]['loss']}  replay {trained[0]['loss']}  equal" in done.stdout
    assert "weights" in done.stdout
    assert f"0 of {len(recorded)} rollouts changed" in done.stdout
    assert done.stdout.endswith("equal to the run\n")


def drop_sums_of(folder: Path, name: str) -> None:
    sums = folder / "SHA256SUMS"
    kept = [line for line in sums.read_text().splitlines(keepends=True) if not line.endswith(f"  {name}\n")]
    sums.write_text("".join(kept))


def test_steps_replay_from_the_start_model_where_no_checkpoint_is(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay.main([str(run), "--step", "2"]) == 0
    printed = capsys.readouterr().out
    assert "steps 1 to 2 from" in printed
    assert printed.count("  equal\n") == 5  # loss and norm of both steps, weights of the second


def test_a_run_with_other_numbers_or_weights_is_not_equal(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("loss", "weights"):
        other = tmp_path / name
        shutil.copytree(run, other)
        if name == "loss":
            metrics = other / "seed-0/metrics.jsonl"
            records = [{**r, "loss": r.get("loss", 0.0) + 1e-7} for r in read_jsonl(metrics)]
            metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
        else:
            shutil.copyfile(
                other / "seed-0/checkpoints/step-000002/model.safetensors",
                other / "seed-0/checkpoints/step-000003/model.safetensors",
            )
        assert replay.main([str(other)]) == 1
        assert f"step 3 {name:<10} run" in (printed := capsys.readouterr().out)
        assert "differs" in printed


def test_a_changed_bundle_and_a_missing_step_are_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bundle.main([str(run), "--step", "1", "--out", str(tmp_path / "bundle")]) == 0
    with open(tmp_path / "bundle/tasks.jsonl", "a") as file:
        file.write("\n")
    assert replay.main([str(tmp_path / "bundle")]) == 2
    assert "tasks.jsonl has changed" in capsys.readouterr().err
    assert replay.main([str(run), "--step", "9"]) == 2
    assert "step 4 is not recorded" in capsys.readouterr().err


def test_a_torn_log_is_bundled_and_a_failure_leaves_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torn, out = tmp_path / "torn", tmp_path / "bundle"
    shutil.copytree(run, torn)
    metrics, versions = torn / "seed-0/metrics.jsonl", torn / "versions.json"
    whole = metrics.read_text()
    metrics.write_text(whole + '{"stage": "tr')
    versions.rename(torn / "aside")
    assert bundle.main([str(torn), "--out", str(out)]) == 2
    assert str(versions) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["torn"]
    (torn / "aside").rename(versions)
    assert bundle.main([str(torn), "--out", str(out)]) == 0
    kept = [line for line in whole.splitlines() if json.loads(line)["step"] == 3]
    assert [line for line in kept if '"train"' in line] == (out / "seed-0/metrics.jsonl").read_text().splitlines()


def test_data_that_ask_something_else_under_the_same_name_are_no_data_of_the_run(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text())
    tasks = list(read_jsonl(Path(config["data"]["train"])))
    config["data"]["train"] = str(tmp_path / "train.jsonl")
    (tmp_path / "run/config.yaml").write_text(yaml.safe_dump(config))
    for left, told in ((tasks, "asks 'Which?', and asked "), (tasks[:0], "has no task ")):
        (tmp_path / "train.jsonl").write_text(
            "".join(json.dumps({**task, "question": "Which?"}) + "\n" for task in [*left, {**tasks[0], "task_id": "x"}])
        )
        assert bundle.main([str(tmp_path / "run"), "--out", str(tmp_path / "bundle")]) == 2
        assert told in capsys.readouterr().err
        assert not (tmp_path / "bundle").exists()
        assert replay.main([str(tmp_path / "run"), "--reward", "method"]) == 2
        assert told in capsys.readouterr().err


def half(rollout: RecordedRollout) -> float:
    """Reward half of what the run gave, and 0.25 for a wrong answer."""
    return 0.5 * (rollout.reward or 0.0) or 0.25


def test_another_reward_is_compared_rollout_by_rollout(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = [r for r in read_rollouts(run / "seed-0/rollouts.jsonl.gz") if r.stage == "train" and r.step == 3]
    assert replay.main([str(run), "--reward", "tests.e2e.test_replay.half"]) == 0
    printed = capsys.readouterr().out
    for rollout in recorded:
        assert f"step 3 task {rollout.task_id!r}: reward {rollout.reward} -> {half(rollout)}" in printed
    assert f"{len(recorded)} of {len(recorded)} rollouts changed" in printed
    assert "not compared: the rewards" in printed


def test_another_recipe_gives_other_numbers(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main([str(run), "--what-if", "optimizer.lr=0.1"]) == 0
    printed = capsys.readouterr().out
    assert any("weights" in line and "differs" in line for line in printed.splitlines())
    assert replay.main([str(run), "--what-if", "optimizer.rate=0.1"]) == 2
    assert "unknown key; known keys: name, lr" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run_value", "replayed", "tolerance", "close"),
    [(1.0, 1.0, 0.0, True), (1.0, 1.0 + 1e-12, 0.0, False), (1e-9, -1e-9, 1e-3, True), (100.0, 100.2, 1e-3, False),
     (None, 3.0, 0.0, True), (1.0, None, 1e-3, False), ("a", "b", 1e-3, False)],
)  # fmt: skip
def test_numbers_are_equal_here_and_close_elsewhere(
    run_value: float | str | None, replayed: float | str | None, tolerance: float, close: bool
) -> None:
    assert Comparison("x", run_value, replayed).is_close(tolerance) is close
