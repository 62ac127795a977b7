"""The command, on a process that stands for tau2: records, resuming, files, refusals; and pass^k by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentic.toolorchestra.tau2 import client
from benchmarks.harness.samples import Sample
from benchmarks.tau2 import evaluate
from benchmarks.tau2.results import tau2_result, tau2_statistics
from benchmarks.tau2.tasks import BLOBS, COMMIT, list_departures
from core.report.stats import wilson
from core.runs.record import read_rollouts
from core.runs.run_folder import RunFolder
from core.worlds import World
from core.worlds.start_model import build
from tests.unit.benchmarks.conftest import CELL, make_sample

FAKE = Path(__file__).parents[2] / "agentic" / "toolorchestra" / "tau2" / "fake_worker.py"


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "WORKER", FAKE)


def run(out: Path, *more: str) -> int:
    return evaluate.main(["--variants", "do-nothing", "--domains", "retail", "telecom", "--out", str(out), *more])


def read_numbers(out: Path, variant: str, data: str = "tau2-retail") -> Mapping[str, Any]:
    (found,) = (result for result in RunFolder(out).evaluations() if (result.variant, result.data) == (variant, data))
    return found.notes


def test_the_do_nothing_variant_needs_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert run(out) == 0
    assert "| micro | 50.0" in capsys.readouterr().out
    numbers = read_numbers(out, "do-nothing")
    assert (numbers["pass^1"]["retail"]["mean"], numbers["tasks"], numbers["trials"]) == (0.5, {"retail": 2}, 1)
    assert any("domains/retail/db.json is missing" in line for line in RunFolder(out).published["departures"])
    codes = {frozenset(result.settings["code_of_benchmark"]) for result in RunFolder(out).evaluations()}
    assert codes == {frozenset({"protocols.py", "tasks.py"})}
    official = json.loads((out / "official" / "do-nothing_retail.json").read_text())
    assert [s["trial"] for s in official["simulations"]] == [0, 0]
    assert official["info"]["num_trials"] == 1
    assert (out / "report.html").is_file()
    # The tables of a later call hold what this one played.
    assert evaluate.main(["--variants", "do-nothing", "--domains", "airline", "--out", str(out)]) == 0
    printed = capsys.readouterr().out.rpartition("## do-nothing")[2]
    assert "| retail | 50.0" in printed
    assert "| airline | 50.0" in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--variants", "standard"], "no model"),
        (["--variants", "experts"], "the variants are the protocol, standard, and do-nothing"),
        (["--model", "m"], "nobody plays the user"),
        (["--model", "m", "--user", "nobody"], "'nobody' is not under toolorchestra.models"),
        (["--model", "m", "--user", "scripted", "--serve", "embedded", "--policy-url", "http://h"], "either --serve"),
    ],
)
def test_what_is_missing_is_said_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert evaluate.main([*options, "--out", str(tmp_path / "run")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Untrained, so that it writes nonsense; with a context that is long enough."""
    folder = tmp_path_factory.mktemp("model")
    build(folder, World(corpus=lambda: ["hello"], vocab_size=300).train_tokenizer(), seed=0)
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 8192}))
    return str(folder)


def with_model(out: Path, model: str, protocol: str, *more: str) -> int:
    options = [
        *("--protocol", protocol, "--model", model, "--domains", "telecom", "--max-steps", "3", "--temperature", "1"),
        *("--set", "toolorchestra.max_tokens=12", "--set", "model.dtype=float32"),
        *("--kv-tokens", "8192", "--concurrency", "1", "--out", str(out)),
    ]
    return evaluate.main([*options, *more])


def read_played(out: Path, variant: str) -> list[Sample]:
    return list(map(Sample.read, read_rollouts(out / "evaluation" / f"{variant}__tau2-telecom__0__seed-0.jsonl.gz")))


@pytest.mark.parametrize("protocol", ["standard", "experts", "toolorchestra-compat"])
def test_a_model_under_each_protocol(tmp_path: Path, model: str, protocol: str) -> None:
    out = tmp_path / "run"
    assert with_model(out, model, protocol, "--user", "scripted", "--trials", "2") == 0
    variant = read_numbers(out, protocol, "tau2-telecom")
    assert (variant["trials"], variant["errors"], "pass^2" in variant) == (2, {}, True)
    assert list(variant["calls"]) == ([] if protocol == "standard" else ["expert-1", "expert-2", "expert-3"])
    played = read_played(out, protocol)
    assert sorted((sample.repeat, sample.graded["tau2_id"]) for sample in played) == [
        (trial, name) for trial in (0, 1) for name in ("easy", "hard")
    ]
    assert all(sample.turns and sample.graded["simulation"]["messages"] and sample.policy_tokens for sample in played)
    official = json.loads((out / "official" / f"{protocol}_telecom.json").read_text())
    assert len(official["simulations"]) == 4
    assert official["info"]["user"] == {"implementation": "user_simulator", "llm": "scripted"}


def test_who_played_and_how_long_cannot_change_in_a_folder(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert with_model(out, model, "standard", "--user", "scripted", "--trials", "1") == 0
    official = {path.name: path.read_text() for path in (out / "official").iterdir()}
    changed = {"user": ["--user", "gpt-5"], "judge": ["--judge", "gpt-5"], "max_errors": ["--max-errors", "3"]}
    for key, words in changed.items():
        assert with_model(out, model, "standard", "--trials", "2", "--user", "scripted", *words) == 1
        message = capsys.readouterr().err
        assert f"recipe.toolorchestra.environment.options.{key}: " in message
        assert "Choose another --out" in message
    assert {path.name: path.read_text() for path in (out / "official").iterdir()} == official


def test_numbers_are_of_one_conversation_whatever_the_trials(tmp_path: Path, model: str) -> None:
    """do-nothing plays one trial beside the protocol's three."""
    out = tmp_path / "run"
    variants = ["--user", "scripted", "--trials", "3", "--variants", "standard", "do-nothing", "--split", "test"]
    assert with_model(out, model, "standard", *variants) == 0
    report = json.loads((out / "summary.json").read_text())
    assert "split: test; published: base" in report["departures"]
    summary = report["variants"]["standard"]["0"]
    played = read_played(out, "standard")
    assert len(played) == 6
    assert summary["measures"]["turns"] == pytest.approx(sum(sample.turns for sample in played) / 6)
    assert summary["measures"]["policy_tokens"] == pytest.approx(sum(sample.policy_tokens for sample in played) / 6)


def test_conversations_of_another_tau2_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run(out) == 0
    other = tmp_path / "other.py"
    other.write_text(FAKE.read_text().replace('"commit": None', '"commit": "0123abc"'))
    monkeypatch.setattr(client, "WORKER", other)
    assert run(out) == 1
    assert "played on another tau2-bench (commit was None). Give that one" in capsys.readouterr().err


def test_an_installation_is_compared_with_the_pin() -> None:
    same = {"version": "1.0.1", "commit": COMMIT, "blobs": dict(BLOBS)}
    assert list_departures(same, ["retail", "airline", "telecom"]) == []
    other = {**same, "commit": "abc", "blobs": {**BLOBS, "domains/airline/db.json": "x"}}
    assert len(list_departures(other, ["airline"])) == 2
    assert len(list_departures(other, ["retail"])) == 1


def trial(
    name: str, number: int, solved: bool, end: str = "user_stop", judged: bool = True, **metrics: float
) -> Sample:
    simulation = {"termination_reason": end, "info": {"assertions_not_judged": not judged}}
    graded = {"score": float(solved), "simulation": simulation}
    return make_sample(name, number, graded=graded, metrics=metrics)


def trials(counts: list[int], n: int = 4) -> list[list[Sample]]:
    return [[trial(f"task{i}", t, t < c) for t in range(n)] for i, c in enumerate(counts)]


def test_by_domain_micro_and_macro() -> None:
    stats = tau2_statistics({"retail": trials([4, 2, 0, 4]), "airline": trials([2, 2])})
    one, two = stats.pass_hat[1], stats.pass_hat[2]
    assert (one["retail"].mean, one["airline"].mean) == (0.625, 0.5)
    assert one["micro"].mean == pytest.approx((4 * 0.625 + 2 * 0.5) / 6)
    assert one["macro"].mean == pytest.approx((0.625 + 0.5) / 2)
    assert two["retail"].mean == pytest.approx((1 + 1 / 6 + 0 + 1) / 4)
    assert stats.pass_hat[4]["airline"].mean == 0
    assert one["micro"].low <= one["micro"].mean <= one["micro"].high
    assert (one["airline"].low, one["airline"].high) == pytest.approx(wilson(1, 2)), "scores that are all equal"
    assert (stats.trials, stats.tasks) == (4, {"retail": 4, "airline": 2})


def test_a_failure_counts_as_not_solved_and_is_counted_and_leaves_cost_and_calls() -> None:
    failed = make_sample("b", 0, status="failed", failure="deadline", graded={"score": None, "simulation": None})
    made = [
        [trial("a", 0, True, cost=0.5, **{"calls_expert-1": 2, "calls_expert-2": 1})],
        [failed],
        [trial("c", 0, False, "max_steps", judged=False, cost=0.1, **{"calls_expert-1": 0})],
    ]
    stats = tau2_statistics({"retail": made})
    assert stats.pass_hat[1]["micro"].mean == pytest.approx(1 / 3)
    assert stats.errors == {"deadline": 1}
    assert stats.terminations == {"user_stop": 1, "infrastructure_error": 1, "max_steps": 1}
    assert (stats.cost, stats.calls) == (pytest.approx(0.3), {"expert-1": 1.0, "expert-2": 0.5})
    assert (stats.histogram, stats.not_judged) == ({0: 1, 3: 1}, 1)


def test_a_failed_trial_has_the_score_0_and_no_known_cost() -> None:
    lost = {"status": "failed", "failure": "deadline", "turns": 0, "graded": {"score": None, "simulation": None}}
    samples = [
        [trial("a", 0, True, cost=0.5), make_sample("a", 1, **lost)],
        [make_sample("b", 0, **lost), make_sample("b", 1, **lost)],
    ]
    result = tau2_result(replace(CELL, data="tau2-retail"), samples)
    assert result.scores["official"] == [0.5, 0.0]
    assert (result.measures["cost"], result.measures["turns"]) == ([0.5, None], [1.0, None])
