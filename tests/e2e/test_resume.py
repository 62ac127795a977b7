"""`kill -9` at random moments: the run that comes out is the run that was never touched."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from core.runs.files import Record, read_jsonl
from core.runs.record import read_rollouts
from tests.e2e.conftest import Launcher
from tests.kit import read_without_clocks

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

CLOCK = {"seconds", "time", "rollout_seconds", "tokens_per_second"}
SCENARIOS = {
    "everything": [
        "algorithm.kl_loss_coef=0.01", "algorithm.num_steps_per_rollout=2", "algorithm.tis=[0.5, 2]",
        "algorithm.dynamic_sampling=true", "algorithm.max_num_gen_batches=2", "optimizer.lr_scheduler_type=linear",
        "optimizer.lr_decay_steps=16",
    ],
    "cold_start_and_two_seeds": [
        "warm_start.steps=5", "warm_start.copy_steps=2", "warm_start.lookup_steps=1", "warm_start.batch_size=4",
        "algorithm.entropy_coef=0.01", "run.seeds=[3, 4]", "run.steps=3",
    ],
}  # fmt: skip
KILLS = 6
"""In each scenario."""


def arguments(preset: Path, out: Path, overrides: list[str]) -> list[str]:
    return ["--preset", str(preset), "--out", str(out), *(part for o in overrides for part in ("--set", o))]


def records(path: Path) -> list[Record]:
    return [{name: value for name, value in record.items() if name not in CLOCK} for record in read_jsonl(path)]


def assert_same_run(run: Path, untouched: Path) -> None:
    seeds = sorted(path.name for path in untouched.glob("seed-*"))
    assert sorted(path.name for path in run.glob("seed-*")) == seeds
    for seed in seeds:
        assert records(run / seed / "metrics.jsonl") == records(untouched / seed / "metrics.jsonl")
        ours, theirs = (read_without_clocks(each / seed / "rollouts.jsonl.gz") for each in (run, untouched))
        assert ours == theirs
        checkpoints = sorted(path.name for path in (untouched / seed / "checkpoints").iterdir())
        assert sorted(path.name for path in (run / seed / "checkpoints").iterdir()) == checkpoints
        for checkpoint in checkpoints:
            file = f"{seed}/checkpoints/{checkpoint}/model.safetensors"
            ours, theirs = load_file(run / file), load_file(untouched / file)
            assert ours.keys() == theirs.keys()
            assert all(ours[name].equal(theirs[name]) for name in ours)


def assert_every_task_in_turn(run: Path, data_set: Path) -> None:
    """Each epoch of the data set is complete before the next begins, over all steps of each seed."""
    known = sorted(record["task_id"] for record in read_jsonl(data_set))
    for metrics in run.glob("seed-*/metrics.jsonl"):
        trained = [record for record in records(metrics) if record["stage"] == "train"]
        assert [record["step"] for record in trained] == list(range(1, len(trained) + 1))
        taken = [task for record in trained for task in record["tasks"]]
        for start in range(0, len(taken), len(known)):
            epoch = taken[start : start + len(known)]
            assert len(set(epoch)) == len(epoch)
            assert set(epoch) <= set(known)


def assert_rollouts_belong_to_their_tasks(run: Path, data_set: Path) -> None:
    tasks = {record["task_id"]: record for record in read_jsonl(data_set)}
    for path in run.glob("seed-*/rollouts.jsonl.gz"):
        for rollout in read_rollouts(path):
            if rollout.stage == "train":
                task = tasks[rollout.task_id]
                assert (rollout.question, rollout.answers) == (task["question"], task["answers"])
                assert task["question"] in rollout.decode(rollout.prompts[0])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_killed_at_random_moments_ends_as_one_that_was_not(
    launcher: Launcher, preset: Path, tmp_path: Path, scenario: str
):
    overrides = SCENARIOS[scenario]
    started = time.monotonic()
    launcher.run(arguments(preset, tmp_path / "untouched", overrides))
    whole = time.monotonic() - started
    assert_every_task_in_turn(tmp_path / "untouched", preset.parent / "train.jsonl")
    assert_rollouts_belong_to_their_tasks(tmp_path / "untouched", preset.parent / "train.jsonl")
    assert weights_moved(tmp_path / "untouched")

    rng = random.Random(scenario)
    kills = attempt = 0
    while kills < KILLS:
        run = tmp_path / f"killed-{attempt}"
        attempt += 1
        status = None
        while status != 0:
            pid = launcher.start(arguments(preset, run, overrides))
            if kills < KILLS:
                time.sleep(rng.uniform(0.02, 0.8) * whole)
                launcher.kill(pid)
            status = launcher.wait()
            assert status in (0, -9), launcher.log.read_text()
            kills += status == -9
        assert_same_run(run, tmp_path / "untouched")


def weights_moved(run: Path) -> bool:
    """Whether the weights moved in every seed; without that, equality of two runs would say little."""
    for seed in run.glob("seed-*"):
        first, *_, last = sorted((seed / "checkpoints").iterdir())
        a, b = load_file(first / "model.safetensors"), load_file(last / "model.safetensors")
        if all(a[name].equal(b[name]) for name in a):
            return False
    return True


def test_a_finished_run_is_left_as_it_is(launcher: Launcher, preset: Path, tmp_path: Path):
    command = arguments(preset, tmp_path / "run", ["run.steps=2"])
    contents = []
    for _ in range(2):
        launcher.run(command)
        files = [path for path in sorted((tmp_path / "run").rglob("*")) if path.is_file()]
        contents.append({path: path.read_bytes() for path in files})
    assert contents[0] == contents[1]


def test_a_corrupt_checkpoint_stops_the_run_with_its_name(launcher: Launcher, preset: Path, tmp_path: Path):
    command = arguments(preset, tmp_path / "run", ["run.steps=4"])
    launcher.run(command)
    newest = tmp_path / "run" / "seed-0" / "checkpoints" / "step-000004"
    (newest / "trainer.pt").write_bytes(b"torn")
    metrics = (tmp_path / "run" / "seed-0" / "metrics.jsonl").read_bytes()
    assert f"error: {newest / 'trainer.pt'}: cannot be read" in launcher.run(command, status=1)
    assert (tmp_path / "run" / "seed-0" / "metrics.jsonl").read_bytes() == metrics


def test_more_steps_and_seeds_continue_a_run(launcher: Launcher, preset: Path, tmp_path: Path):
    """As if it had been asked for them at once, but for the evaluation that ended it the first time."""
    whole = ["run.steps=3", "run.seeds=[0, 1]"]
    for run, overrides in (("grown", ["run.steps=2"]), ("grown", whole), ("at_once", whole)):
        launcher.run(arguments(preset, tmp_path / run, overrides))
    for seed in ("seed-0", "seed-1"):
        grown, at_once = (tmp_path / run / seed for run in ("grown", "at_once"))
        trained = [
            [record for record in records(run / "metrics.jsonl") if record["stage"] == "train"]
            for run in (grown, at_once)
        ]
        assert trained[0] == trained[1]
        last = "checkpoints/step-000003/model.safetensors"
        assert (grown / last).read_bytes() == (at_once / last).read_bytes()
    assert yaml.safe_load((tmp_path / "grown" / "config.yaml").read_text())["run"]["steps"] == 3
