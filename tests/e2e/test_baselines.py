"""The two trained baselines: rejection sampling at GRPO's budget, and supervised training on correct trajectories."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from core.runs.files import read_jsonl
from core.runs.run_folder import RunFolder
from tests.e2e.conftest import Launcher
from tests.e2e.test_resume import arguments

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SETTINGS = [
    "run.steps=3", "run.eval_every=1", "run.keep=best", "rejection.lr=1e-3", "rejection.batch_size=4",
    "supervised.lr=1e-3", "supervised.steps=3", "supervised.batch_size=4",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(launcher: Launcher, preset: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of GRPO with both baselines in its folder."""
    out = tmp_path_factory.mktemp("runs") / "run"
    for more in ([], ["--baseline", "rejection"], ["--baseline", "supervised"]):
        launcher.run([*arguments(preset, out, SETTINGS), *more])
    return RunFolder(out)


def test_rejection_sampling_has_the_tasks_the_seeds_and_the_budget_of_grpo(run: RunFolder):
    grpo = [record for record in run.read_metrics(0) if record["stage"] == "train"]
    sampled = list(read_jsonl(run.rejection_path(0) / "rollouts.jsonl"))
    assert [record["tasks"] for record in sampled] == [record["tasks"] for record in grpo]
    assert [record["sampled"] for record in sampled] == [8, 8, 8]
    assert sampled[0]["kept"] / 8 == grpo[0]["reward"], "the first step's rollouts are the same ones"
    assert 0 < sum(record["kept"] for record in sampled) < 24
    turns = [turn for record in sampled for turn in record["turns"]]
    steps = [record["step"] for record in read_jsonl(run.rejection_path(0) / "metrics.jsonl")]
    assert steps == list(range(1, -(-len(turns) // 4) + 1)), "each kept turn once"


def test_a_baseline_is_a_model_of_its_own_and_starts_where_grpo_starts(run: RunFolder):
    start = load_file(Path(run.config["model"]["path"]) / "model.safetensors")
    models = [load_file(path / "model" / "model.safetensors") for path in (run.rejection_path(0), run.supervised_path)]
    for model in models:
        assert 0 < max((model[name] - tensor).abs().max() for name, tensor in start.items()) < 0.1
    assert any(not models[0][name].equal(models[1][name]) for name in start)


def test_a_baseline_that_was_killed_ends_as_one_that_was_not(
    launcher: Launcher, preset: Path, run: RunFolder, tmp_path: Path
):
    rng, kills = random.Random(0), 0
    command = [*arguments(preset, tmp_path / "run", SETTINGS), "--baseline", "rejection"]
    status = None
    while status != 0:
        pid = launcher.start(command)
        if kills < 4:
            time.sleep(rng.uniform(0.5, 2.0))
            launcher.kill(pid)
        status = launcher.wait()
        kills += status == -9
    for name in ("rejection/rollouts.jsonl", "rejection/model/model.safetensors"):
        assert (tmp_path / "run" / "seed-0" / name).read_bytes() == (run.seed_path(0) / name).read_bytes()
    assert not list((tmp_path / "run").rglob("*.partial"))


def test_a_recipe_without_the_section_is_refused(launcher: Launcher, preset: Path, tmp_path: Path):
    out = tmp_path / "run"
    output = launcher.run([*arguments(preset, out, []), "--baseline", "rejection"], status=1)
    assert "--baseline rejection needs the section `rejection` in the recipe" in output
    assert not out.exists()
