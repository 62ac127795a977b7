"""The command, on a process that stands for tau2: records, resuming, files, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentic.toolorchestra.tau2 import client
from benchmarks.tau2 import evaluate
from benchmarks.tau2.pin import BLOBS, COMMIT, departures
from benchmarks.tau2.tasks import main as write_tasks
from core.data.tasks import read_tasks
from core.tiny import build, train_tokenizer

FAKE = Path(__file__).parents[2] / "agentic" / "toolorchestra" / "tau2" / "fake_worker.py"


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "WORKER", FAKE)


def run(out: Path, *more: str) -> int:
    return evaluate.main(["--arms", "do-nothing", "--domains", "retail", "telecom", "--out", str(out), *more])


def test_the_do_nothing_arm_needs_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert run(out) == 0
    assert "| micro | 50.0" in capsys.readouterr().out
    found = json.loads((out / "tau2.json").read_text())
    arm = found["arms"]["do-nothing"]
    assert (arm["pass^1"]["retail"]["mean"], arm["tasks"], arm["trials"]) == (0.5, {"retail": 2, "telecom": 2}, 1)
    assert any("domains/retail/db.json is missing" in line for line in found["departures"])
    official = json.loads((out / "official" / "do-nothing_retail.json").read_text())
    assert [s["trial"] for s in official["simulations"]] == [0, 0]
    assert official["info"]["num_trials"] == 1
    assert (out / "report.html").is_file()


def test_what_is_there_is_not_played_again(tmp_path: Path) -> None:
    out = tmp_path / "run"
    log = out / "seed-0" / "trajectories.jsonl"
    assert run(out) == 0
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:3]) + lines[3][:40])  # killed while it wrote
    assert run(out) == 0
    again = log.read_text().splitlines(keepends=True)
    assert (again[:3], len(again)) == (lines[:3], 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--arms", "standard"], "no model"),
        (["--arms", "experts"], "the arms are the protocol, standard, and do-nothing"),
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
    build(folder, train_tokenizer(["hello"], words=[], tags=[], vocab_size=300), seed=0)
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 8192}))
    return str(folder)


@pytest.mark.parametrize("protocol", ["standard", "experts", "toolorchestra-compat"])
def test_a_model_under_each_protocol(tmp_path: Path, model: str, protocol: str) -> None:
    out = tmp_path / "run"
    options = [
        *("--protocol", protocol, "--model", model, "--user", "scripted", "--domains", "telecom", "--trials", "2"),
        *("--set", "toolorchestra.max_tokens=12", "--set", "model.dtype=float32", "--temperature", "1"),
        *("--max-steps", "3", "--kv-tokens", "8192", "--concurrency", "1", "--out", str(out)),
    ]
    assert evaluate.main(options) == 0
    arm = json.loads((out / "tau2.json").read_text())["arms"][protocol]
    assert (arm["trials"], arm["errors"], list(arm)[-1]) == (2, {}, "pass^2")
    assert list(arm["calls"]) == ([] if protocol == "standard" else ["expert-1", "expert-2", "expert-3"])
    records = [json.loads(line) for line in (out / "seed-0" / "trajectories.jsonl").read_text().splitlines()]
    played = [record for record in records if record["arm"] == protocol]
    assert sorted((record["step"], record["tau2_id"]) for record in played) == [
        (trial, name) for trial in (0, 1) for name in ("easy", "hard")
    ]
    assert all(record["turns"] and record["simulation"]["messages"] and record["policy_tokens"] for record in played)
    official = json.loads((out / "official" / f"{protocol}_telecom.json").read_text())
    assert len(official["simulations"]) == 4
    assert official["info"]["user"] == {"implementation": "user_simulator", "llm": "scripted"}


def test_tasks_as_a_data_file(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    assert write_tasks(["--domain", "telecom", "--solo", "--out", str(path)]) == 0
    easy, hard = read_tasks(path, require_context=False)
    assert (easy.task_id, hard.metadata["tau2_id"], hard.metadata["solo"]) == ("telecom-solo/easy", "hard", True)


def test_an_installation_is_compared_with_the_pin() -> None:
    same = {"version": "1.0.1", "commit": COMMIT, "blobs": dict(BLOBS)}
    assert departures(same, ["retail", "airline", "telecom"]) == []
    other = {**same, "commit": "abc", "blobs": {**BLOBS, "domains/airline/db.json": "x"}}
    assert len(departures(other, ["airline"])) == 2
    assert len(departures(other, ["retail"])) == 1
