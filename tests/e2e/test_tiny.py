"""Each method's experiment `tiny` by `tokentrue run` at its smallest scale: data, training, variants, report."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.engine import weights
from core.inspect import drift, replay
from core.runs.files import read_jsonl
from core.runs.record import read_rollouts
from core.runs.run_folder import LOCK, RunFolder
from core.text.tokenizer import load_tokenizer
from core.worlds import find_world
from tests.e2e.conftest import REPOSITORY, environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

STEPS = 2
SMALLEST = {
    "warm_start.steps": 8, "warm_start.copy_steps": 1, "warm_start.batch_size": 4, "rollout.tasks_per_step": 2,
    "rollout.group_size": 2, "run.steps": STEPS, "run.eval_every": 1, "run.eval_tasks": 2, "run.save_every": 1,
    "run.seeds": [0], "model.device": "cpu",
}  # fmt: skip
GRADIENT = {"algorithm.entropy_coef": 0.01}
"""Gives a gradient to steps without a reward too, which a replay must repeat."""


@dataclass(frozen=True)
class Expected:
    """Holds what the run of a method must show."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    options: str = ""
    """Holds further options of the evaluation."""
    variants: str = ""
    """Names the variants that the summary must have beside `trained`, `untrained` and `untrained-greedy`."""
    logged: str = "turns"
    """Names what each training step must log."""
    measures: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Maps (variant, measure) to its mean."""
    trained: str = ""
    """Begins the roles whose turns are trained."""
    killed: bool = False
    """Kills the run with all its processes while it trains, and starts it again."""


EXPECTED = {
    "agent": Expected(options="--variants untrained untrained-greedy trained no-tool", variants="no-tool"),
    "agentflow": Expected(
        settings=GRADIENT | {"model.max_model_len": 384},  # a policy of nine steps rambles, and its memory grows
        variants="always-python-coder always-base-generator random-tool no-tool",
        logged="turns tool_errors parse_errors calls_python_coder calls_base_generator",
        trained="planner.",
    ),
    "codescout": Expected(
        options="--by kind",
        variants="aimless-search first-word first-file",
        logged="turns calls_bash official",
        measures={("first-word", "calls_bash"): 1.0, ("first-file", "end_answered"): 1.0},
    ),
    "coding": Expected(
        options="--by kind --variants untrained untrained-greedy trained best-constant",
        variants="best-constant",
        measures={("best-constant", "end_answered"): 1.0},
    ),
    "compaction": Expected(
        settings={"warm_start.steps": 24, "warm_start.lookup_steps": 1},
        options="--by pages",
        variants="no-summary aimless-summary",
        logged="turns compactions summary_tokens answer_boxed",
    ),
    "memagent": Expected(
        settings={"warm_start.lookup_steps": 1},
        options="--lengths 448 --variants untrained untrained-greedy trained empty-document",
        variants="empty-document",
    ),
    "retool": Expected(
        options="--by words",
        variants="no-code random-code best-constant",
        logged="turns calls_interpreter failed_calls answer_boxed official",
        measures={("random-code", "calls_interpreter"): 1.0, ("no-code", "calls_interpreter"): 0.0},
    ),
    "rlm": Expected(
        settings={"warm_start.lookup_steps": 1},
        variants="aimless best-constant split-and-ask",
        logged="turns calls_interpreter calls_subcall failed_calls answered",
        measures={("split-and-ask", "calls_interpreter"): 1.0, ("aimless", "failed_calls"): 0.0},
    ),
    "search_r1": Expected(
        options="--by searches",
        variants="aimless-search no-search",
        logged="turns calls_search invalid_actions answered",
        measures={("no-search", "calls_search"): 0.0},
    ),
    "toolorchestra": Expected(
        settings=GRADIENT
        | {"warm_start.steps": 16, "warm_start.batch_size": 8, "warm_start.copy_steps": None, "rollout.group_size": 4}
        | {"optimizer.lr": 1e-5},  # so that the second step has rewards that differ, too
        options="--by kind preference case",
        variants="best cheapest most-expensive search-own",
        logged="turns expert_failures",
        measures={("best", "official"): 1.0, ("best", "best_route"): 1.0, ("cheapest", "calls_search-1"): 1.0},
        killed=True,
    ),
}
TASKS = 6


def expect(method: str) -> Expected:
    """Return what the run of a method must show; one that EXPECTED does not name has the baselines of its world."""
    world = find_world(method)
    return EXPECTED.get(method) or Expected(variants=" ".join(world.baselines if world else ()), logged="")


def write_recipe(method: str, expected: Expected, folder: Path) -> Path:
    """Write a recipe as `tiny`, with few tasks and one evaluation."""
    recipe = yaml.safe_load((REPOSITORY / "agentic" / method / "presets" / "tiny.yaml").read_text())
    experiment, data = recipe["experiment"], f"runs/data/{method}-tiny"
    needed = [file for file in experiment["data"] if not Path(file).name.startswith("test-")]
    experiment["data"] = {file: re.sub(r"--count \d+", "--count 12", experiment["data"][file]) for file in needed}
    experiment["services"] = {str(REPOSITORY / file): logs for file, logs in experiment.get("services", {}).items()}
    questions = "ruler" if method == "memagent" else f"heldout {method} --data {data}/test.jsonl"
    command = f"tokentrue evaluate {questions} --run {{out}} --tasks {TASKS} {expected.options}"
    experiment["evaluate"] = {"test": command}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


METHODS = {path.parent.name for path in REPOSITORY.glob("agentic/*/rollout.py")} - {"skeleton"}
"""Leaves out the skeleton, which tests/e2e/test_new.py runs under another name."""


@pytest.fixture(scope="module", params=sorted(METHODS))
def method(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def run(method: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    if method in ("agentflow", "coding", "retool", "rlm"):
        request.getfixturevalue("isolation")
    expected, folder = expect(method), tmp_path_factory.mktemp(method)
    settings = {key: value for key, value in (SMALLEST | expected.settings).items() if value is not None}
    command = [sys.executable, "-m", "scripts.tokentrue", "run", method, "--out", "runs/small"]
    command += ["--preset", str(write_recipe(method, expected, folder))]
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    if expected.killed:
        kill_once_it_trains(command, folder, folder / "runs/small/seed-0/metrics.jsonl")
    subprocess.run(command, cwd=folder, env=environment(), check=True)
    return RunFolder(folder / "runs" / "small")


def kill_once_it_trains(command: Sequence[str], folder: Path, metrics: Path) -> None:
    first = subprocess.Popen(command, cwd=folder, env=environment(), start_new_session=True)
    deadline = time.monotonic() + 300
    while first.poll() is None and not (metrics.exists() and '"stage": "train"' in metrics.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL


def test_steps_are_logged_once_and_no_rollout_failed(run: RunFolder, method: str) -> None:
    records = list(read_jsonl(run.seed_path(0) / "metrics.jsonl"))
    steps = [(r["stage"], r["step"]) for r in records if r["stage"] != "warm_start"]
    assert steps == [("eval", 0)] + [(stage, step) for step in range(1, STEPS + 1) for stage in ("train", "eval")]
    for record in (r for r in records if r["stage"] == "train"):
        assert record["failures"] == {}
        assert record.keys() >= {"tasks", "rows", "seconds", "tokens_per_second", *expect(method).logged.split()}


def test_every_sampled_token_is_recorded_and_the_roles_that_should_are_trained(run: RunFolder, method: str) -> None:
    rollouts = list(read_rollouts(run.rollouts_path(0)))
    group_size = run.config["rollout"]["group_size"]
    expected = {("eval", step): 2 for step in range(STEPS + 1)} | {
        ("train", step): 2 * group_size for step in range(1, STEPS + 1)
    }
    assert Counter((rollout.stage, rollout.step) for rollout in rollouts) == expected
    for turn in (turn for rollout in rollouts for turn in rollout.turns):
        assert turn.trained == turn.role.startswith(expect(method).trained)


def test_every_file_is_there_and_no_half_of_one(run: RunFolder) -> None:
    files = "config.yaml versions.json summary.json table.md report.html view.html evaluate-test.log"
    assert [name for name in files.split() if not (run.path / name).is_file()] == []
    assert not [path for path in run.path.rglob(".*") if not path.name.endswith(LOCK)]
    assert run.config["run"]["steps"] == STEPS
    assert run.config["departures"]
    page = (run.path / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<script src" not in page
    assert "<link" not in page


def test_checkpoints_are_models_that_load(run: RunFolder) -> None:
    checkpoint = run.find_trained(0)
    assert checkpoint is not None
    assert checkpoint.name == f"step-{STEPS:06d}"
    assert weights.load(checkpoint, device="cpu").config.vocab_size == len(load_tokenizer(checkpoint))


def test_every_variant_is_in_the_summary_with_its_measures(run: RunFolder, method: str) -> None:
    summary, expected = json.loads((run.path / "summary.json").read_text()), expect(method)
    assert (summary["method"], summary["seeds"]) == (method, [0])
    variants = {"trained", "untrained", "untrained-greedy", *expected.variants.split()}
    assert summary["variants"].keys() >= variants
    for (variant, name), value in expected.measures.items():
        (cell,) = summary["variants"][variant].values()
        assert (cell["score"]["mean"] if name == "official" else cell["measures"][name]) == value


def test_the_record_shows_no_drift_and_a_step_replays_bit_for_bit(
    run: RunFolder, method: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of AgentFlow the frozen roles and the tools run again. Of MemAgent the start model scores what it sampled."""
    monkeypatch.chdir(run.path.parents[1])  # its recipe names files below
    start = str(run.path / "warm_start")
    options = ["--weights", f"0={start}"] if method == "memagent" else []
    assert drift.main([str(run.path), "--tokenizer", start, *options]) == 0
    if method in ("agentflow", "toolorchestra"):
        assert replay.main([str(run.path), *(["--reward", "method"] if method == "agentflow" else [])]) == 0
        printed = capsys.readouterr().out
        assert "grad_norm" in printed
        assert printed.endswith("equal to the run\n")
