"""ToolOrchestra's `tiny` preset at its smallest scale: services, training that is killed and goes on, variants, report.

The retrieval service is killed in the middle of training and of evaluation, and the run itself once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml

from agentic.toolorchestra.tiny import compare, facts, start_model, tasks
from core.data import write_jsonl
from core.inspect import replay
from core.runs.evaluation import EvalResult
from core.runs.files import read_jsonl
from core.runs.run_folder import RunFolder
from tests.e2e.conftest import REPOSITORY, environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

DATA = Path("runs/data/toolorchestra-tiny")
SMALLEST = {
    "warm_start.steps": 16, "warm_start.batch_size": 8, "rollout.tasks_per_step": 2, "rollout.group_size": 4,
    "run.steps": 5, "run.eval_every": 5, "run.eval_tasks": 4, "run.save_every": 1, "run.seeds": [0],
    "model.device": "cpu",
    "algorithm.entropy_coef": 0.01,  # so that every step has a gradient, which a replay must repeat
}  # fmt: skip
PYTHON = sys.executable


@contextmanager
def with_services(folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    services = REPOSITORY / "agentic" / "toolorchestra" / "services" / "tiny.yaml"
    starter = [PYTHON, "-m", "scripts.services", str(services), "--logs", str(DATA / "services"), "--", *command]
    with subprocess.Popen(starter, cwd=folder, env=environment()) as process:
        try:
            yield process
        finally:
            process.terminate()


def wait_for(process: subprocess.Popen[bytes], true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while process.poll() is None and not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill_retrieval(folder: Path) -> None:
    """SIGKILL, to the newest process of this command line: its keeper has the same words and is older."""
    address = yaml.safe_load((folder / DATA / "services" / "addresses.yaml").read_text())["retrieval"]
    words = [b"core.retrieval", address.rpartition(":")[2].encode()]
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if set(words) <= set(path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    os.kill(max(found), signal.SIGKILL)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that was killed once with its services, went on with others at other ports, and was evaluated."""
    folder = tmp_path_factory.mktemp("toolorchestra")
    log = folder / DATA / "services" / "retrieval.log"
    data = folder / DATA
    start_model.build(data / "model", seed=0)
    facts.write_corpus(data / "corpus.jsonl")
    for name, split, count in (("train", "train", 12), ("dev", "dev", 4), ("test", "test", 30)):
        write_jsonl(data / f"{name}.jsonl", tasks.generate(split, count))  # type: ignore[arg-type]
    train = [PYTHON, "-m", "core.train.command", "toolorchestra", "--out", "runs/small"]
    train += [part for key, value in SMALLEST.items() for part in ("--set", f"{key}={value}")]
    metrics = folder / "runs" / "small" / "seed-0" / "metrics.jsonl"

    def trained(step: int) -> bool:
        return metrics.exists() and any(r["stage"] == "train" and r["step"] >= step for r in read_jsonl(metrics))

    with with_services(folder, *train) as first:
        wait_for(first, lambda: trained(1))
        kill_retrieval(folder)
        wait_for(first, lambda: trained(2))
        before = yaml.safe_load((data / "services" / "addresses.yaml").read_text())
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=60) != 0
    with with_services(folder, *train) as second:
        assert second.wait(timeout=300) == 0
    assert yaml.safe_load((data / "services" / "addresses.yaml").read_text()) != before
    heldout = [PYTHON, "-m", "benchmarks.heldout", "toolorchestra", "--run", "runs/small", "--data"]
    heldout += [str(DATA / "test.jsonl"), "--tasks", "30", "--by", "kind", "preference", "case"]
    with with_services(folder, *heldout) as evaluation:
        results = folder / "runs" / "small" / "evaluation"
        wait_for(evaluation, lambda: any(results.glob("*.json")))
        kill_retrieval(folder)
        assert evaluation.wait(timeout=300) == 0
    assert log.read_text().count("ended with status -9") == 2
    assert compare.main([str(folder / "runs" / "small")]) == 0
    return RunFolder(folder / "runs" / "small")


@pytest.fixture(scope="module")
def variants(run: RunFolder) -> dict[str, EvalResult]:
    return {result.variant: result for result in run.evaluations()}


def test_steps_are_logged_once_and_no_rollout_failed(run: RunFolder):
    records = [r for r in read_jsonl(run.seed_path(0) / "metrics.jsonl") if r["stage"] == "train"]
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5]
    assert all(record["failures"] == {} and record["expert_failures"] == 0 for record in records)


def test_the_last_step_replays_bit_for_bit_without_the_services(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay.main([str(run.path)]) == 0
    printed = capsys.readouterr().out
    assert "steps 5 to 5 from" in printed
    assert "grad_norm" in printed
    assert printed.endswith("equal to the run\n")


def test_every_variant_got_its_answers_over_http(variants: dict[str, EvalResult]):
    assert {result.variant: result.failures for result in variants.values()} == {key: {} for key in variants}
    assert set(variants["most-expensive"].scores["official"]) == {1.0}
    assert set(variants["cheapest"].measures["calls_search-1"]) == {1.0}
    assert all(cost and cost > 0 for name in ("most-expensive", "cheapest") for cost in variants[name].measures["cost"])


def test_search_finds_the_fact_that_is_asked_for(variants: dict[str, EvalResult]):
    """Who looks everything up and computes is right but where he must multiply."""
    found = variants["search-own"]
    assert found.scores["official"] == [float(kind != "hard") for kind in found.labels["kind"]]


def test_the_best_routes_are_right_and_serve_the_user_best(variants: dict[str, EvalResult]):
    assert set(variants["best"].scores["official"]) == {1.0}
    assert set(variants["best"].measures["best_route"]) == {1.0}
    rewards = {variant: result.measures["preference_reward"] for variant, result in variants.items()}
    assert all(0.0 <= value <= 1.0 for values in rewards.values() for value in values if value is not None)
    assert list(map(max, zip(*rewards.values(), strict=True))) == rewards["best"]


def test_the_report_has_the_routing_by_kind_and_preference(run: RunFolder):
    table = (run.path / "table.md").read_text()
    assert "test · by case" in table
    assert "| mixed, fast | trained |" in table or "| mixed, fast | untrained |" in table
    assert "cost per solved" in table
    assert "by case" in (run.path / "report.html").read_text()
