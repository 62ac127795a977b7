"""The `tiny` preset from the command line at its smallest scale: train, kill, resume, report."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml

from core.engine import weights
from core.inspect import drift
from core.runs.files import read_jsonl
from core.runs.record import read_rollouts
from core.runs.run_folder import LOCK, RunFolder
from core.text.tokenizer import load_tokenizer
from tests.e2e.conftest import REPOSITORY, environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SMALLEST = {
    "warm_start.steps": 3, "warm_start.copy_steps": 2, "warm_start.lookup_steps": 1, "warm_start.batch_size": 4,
    "rollout.tasks_per_step": 2, "rollout.group_size": 2, "run.steps": 3, "run.eval_every": 1, "run.eval_tasks": 3,
    "run.save_every": 2, "run.record_every": 2, "run.seeds": [0], "model.device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(preset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a training that was killed once, resumed, and reported on."""
    out = tmp_path_factory.mktemp("runs") / "memagent-tiny"
    data = {f"data.{key}": preset.parent / f"{name}.jsonl" for key, name in (("train", "train"), ("eval", "dev"))}
    data["model.path"] = preset.parent / "model"
    command = [sys.executable, "-m", "core.train.command", "memagent", "--preset", "tiny", "--out", str(out)]
    command += [part for key, value in (SMALLEST | data).items() for part in ("--set", f"{key}={value}")]
    first = subprocess.Popen(command, cwd=REPOSITORY, env=environment())
    metrics = out / "seed-0" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while first.poll() is None and not (metrics.exists() and '"stage": "train"' in metrics.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    first.kill()
    assert first.wait() == -signal.SIGKILL
    subprocess.run(command, cwd=REPOSITORY, env=environment(), check=True, timeout=200)
    report = [sys.executable, "-m", "scripts.report", str(out)]
    subprocess.run(report, cwd=REPOSITORY, env=environment(), check=True, timeout=60)
    return out


def test_every_file_of_a_run_is_there(run: Path):
    files = ["config.yaml", "versions.json", "summary.json", "table.md", "report.html", "view.html"]
    files += ["warm_start/config.json"]
    assert [name for name in files if not (run / name).is_file()] == []
    assert {path.name for path in run.rglob(".*")} == {LOCK}, "and nothing half-written"


def test_the_recipe_of_the_run_is_kept_whole(run: Path):
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["preset"], config["rollout"]["group_size"], config["run"]["steps"]) == ("tiny", 2, 3)
    assert config["departures"]


def test_metrics_tell_each_step_once(run: Path):
    records = list(read_jsonl(run / "seed-0" / "metrics.jsonl"))
    warm, rest = records[:6], records[6:]
    assert [(r["stage"], r["step"]) for r in warm] == [("warm_start", step) for step in range(1, 7)]
    steps = [("eval", 0)] + [(stage, step) for step in (1, 2, 3) for stage in ("train", "eval")]
    assert [(r["stage"], r["step"]) for r in rest] == steps
    for record in rest:
        assert 0.0 <= record["reward"] <= 1.0
        if record["stage"] == "train":
            assert record.keys() >= {"tasks", "rows", "failures", "seconds", "tokens_per_second", "prefilled_tokens"}
            assert record["failures"] == {}


def test_every_rollout_of_the_recorded_steps_is_whole(run: Path):
    rollouts = list(read_rollouts(RunFolder(run).rollouts_path(0)))
    counts = Counter((rollout.stage, rollout.step) for rollout in rollouts)
    assert counts == {("eval", 0): 3, ("eval", 1): 3, ("eval", 2): 3, ("eval", 3): 3, ("train", 1): 4, ("train", 2): 4}
    tasks = {r["task_id"]: r for name in ("train", "eval") for r in read_jsonl(recipe_file(run, name))}
    for rollout in rollouts:
        assert [turn.role for turn in rollout.turns][-1] == "final"
        assert (rollout.question, rollout.answers) == (
            tasks[rollout.task_id]["question"],
            tasks[rollout.task_id]["answers"],
        )
        assert rollout.question in rollout.decode(rollout.prompts[0])


def test_the_record_shows_no_drift_even_from_the_weights(run: Path):
    """The start model scores what it sampled at the first step, by Hugging Face's own code."""
    tokenizer = ["--tokenizer", str(run / "warm_start")]
    assert drift.main([str(run), *tokenizer, "--weights", f"0={run / 'warm_start'}"]) == 0


def recipe_file(run: Path, name: str) -> Path:
    return Path(yaml.safe_load((run / "config.yaml").read_text())["data"][name])


def test_checkpoints_are_models_that_load(run: Path):
    checkpoints = sorted((run / "seed-0" / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == ["step-000002", "step-000003"]
    for path in checkpoints:
        assert weights.load(path, device="cpu").config.vocab_size == len(load_tokenizer(path))
        assert weights.eos_token_ids(path) == (load_tokenizer(path).eos_token_id,)


def test_the_summary_has_its_fields(run: Path):
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["method"], summary["preset"], summary["seeds"]) == ("memagent", "tiny", [0])
    fields = "variants retention reward seconds counts checkpoints departures score"
    assert summary.keys() >= set(fields.split())
    assert summary["reward"]["0"].keys() == {"first", "last"}
    assert summary["seconds"].keys() == {"warm_start", "train", "eval"}
    assert summary["counts"]["failures"] == {}
    assert summary["checkpoints"]["0"][-1] == "seed-0/checkpoints/step-000003"


def test_the_report_shows_the_run_and_needs_nothing_else(run: Path):
    page = (run / "report.html").read_text()
    assert "memagent" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<script src" not in page
    assert "<link" not in page
