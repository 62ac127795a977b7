"""The AIME evaluation as a command: killed in the middle and started again, both variants, over the wire and embedded."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from agentic.memagent.tiny import start_model
from benchmarks.aime import evaluate as cli
from core.rollout.method import derive_seed
from core.runs.files import read_json, read_jsonl
from core.text.tokenizer import load_tokenizer
from tests.e2e.conftest import REPOSITORY, environment
from tests.served import health, served, sglang_reply

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PROBLEMS, K = 8, 6
POLICY = {"engine": "policy"}
RECIPE = {
    "method": "agentflow",
    "follows": "nobody",
    "model": {"path": "", "device": "cpu"},
    "data": {"train": "none"},
    "rollout": {"tasks_per_step": 1, "group_size": 2},
    "algorithm": {"name": "grpo", "kl_loss_coef": 0},
    "optimizer": {"lr": 1e-6},
    "run": {"steps": 1},
    "agentflow": {
        "planner": {"plan": None, "next_step": POLICY, "final": POLICY},
        "roles": {"executor": POLICY, "verifier": POLICY, "base_generator": POLICY},
        "tools": {"base_generator": {"path": "core.tools.base_generator.BaseGenerator"}},
        "max_steps": 2,
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model from nothing, with room for long problems."""
    folder = start_model.build(tmp_path_factory.mktemp("aime") / "model", seed=0)
    config = read_json(folder / "config.json")
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    return folder


@pytest.fixture(scope="module")
def preset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("preset") / "plain.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return path


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "sums.jsonl"
    records = [{"id": f"p{i}", "problem": f"What is {i} plus {i}?", "answer": str(2 * i)} for i in range(PROBLEMS)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


class Server:
    """SGLang's wire over a script: of problem i the first i repeats are right, told by the seed of a single call.

    Calls beyond `limit` wait until it is None.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer, self.seeds, self.url = tokenizer, Counter[int](), ""
        self.limit: int | None = None
        self.of = {derive_seed(0, "aime", f"p{i}", repeat): (i, repeat) for i in range(PROBLEMS) for repeat in range(K)}

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        seed = body["sampling_params"]["sampling_seed"]
        self.seeds[seed] += 1
        while self.limit is not None and sum(self.seeds.values()) > self.limit:
            await asyncio.sleep(0.05)
        i, repeat = self.of.get(seed, (0, 0))
        text = f"\\boxed{{{2 * i if repeat < i else 999}}}"
        return sglang_reply([*self.tokenizer.encode(text), self.tokenizer.eos_token_id])


@pytest.fixture
def server(model: Path) -> Iterator[Server]:
    server, app = Server(load_tokenizer(model)), web.Application()
    app.add_routes([web.post("/generate", server.generate), web.get("/health", health)])
    with served(app) as server.url:
        yield server


def arguments(model: Path, preset: Path, problems: Path, out: Path, *more: str) -> list[str]:
    fixed = [
        "--model",
        str(model),
        "--preset",
        str(preset),
        "--data",
        str(problems),
        "--out",
        str(out),
        "--threads",
        "1",
    ]
    return [*fixed, *more]


def test_a_killed_evaluation_goes_on_without_repeating_or_losing_a_sample(
    server: Server, model: Path, preset: Path, problems: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    over_the_wire = ["--policy-url", server.url, "--k", str(K), "--concurrency", "2", "--variants", "single"]
    command = arguments(model, preset, problems, out, *over_the_wire)
    server.limit = PROBLEMS * K // 2
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.aime.evaluate", *command], cwd=REPOSITORY, env=environment(), stdout=log,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    while sum(server.seeds.values()) <= server.limit:
        assert process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.02)
    process.kill()
    process.wait()
    server.limit = None
    written = len(list(read_jsonl(out / "seed-0" / "trajectories.jsonl")))
    assert 0 < written < PROBLEMS * K

    assert cli.main(command) == 0
    records = list(read_jsonl(out / "seed-0" / "trajectories.jsonl"))
    keys = Counter((record["task_id"], record["step"]) for record in records)
    assert keys == Counter((f"p{i}", repeat) for i in range(PROBLEMS) for repeat in range(K))
    # Asked for twice were only samples in flight when the process died.
    assert set(server.seeds) == set(server.of)
    assert sum(server.seeds.values()) <= PROBLEMS * K + 2

    numbers = read_json(out / "aime.json")["sums"]["variants"]["single"]
    hits = [min(i, K) for i in range(PROBLEMS)]
    assert numbers["scores"][f"avg@{K}"]["mean"] == pytest.approx(sum(hits) / (PROBLEMS * K))
    # Three right of six tie with three times 999.
    assert numbers["scores"][f"maj@{K}"]["mean"] == pytest.approx((0.5 + 4) / PROBLEMS)
    assert numbers["scores"]["pass@2"]["mean"] == pytest.approx(
        sum(1 - (K - c) * (K - c - 1) / (K * (K - 1)) for c in hits) / PROBLEMS
    )
    report = read_json(out / "summary.json")["variants"]["single"]["4096"]
    assert report["score"]["mean"] == pytest.approx(sum(hits) / (PROBLEMS * K))
    assert "avg@6" in (out / "aime.md").read_text()
    assert (out / "report.html").stat().st_size > 1000


def test_the_agent_is_an_variant_beside_the_single_call(
    server: Server, model: Path, preset: Path, problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A planner that only ever boxes makes two malformed steps and then answers the first problem, 0, or 999."""
    shared = ["--policy-url", server.url, "--k", "2", "--tasks", "2"]
    assert cli.main(arguments(model, preset, problems, tmp_path, *shared, "--variants", "single")) == 0
    assert cli.main(arguments(model, preset, problems, tmp_path, *shared, "--variants", "agent")) == 0
    variants = read_json(tmp_path / "aime.json")["sums"]["variants"]
    assert variants["agent"]["parse_errors"] == 1.0
    assert variants["agent"]["mean_turns"] == 3.0
    assert variants["single"]["parse_errors"] == 0.0
    assert "agent − single" in capsys.readouterr().out
    # Another sampling does not go into the same folder.
    assert cli.main(arguments(model, preset, problems, tmp_path, *shared, "--temperature", "0.1")) == 1
    assert "sampling.temperature: 0.7 in the folder, 0.1 asked for" in capsys.readouterr().err


def test_the_real_problems_with_a_checkpoint_in_the_embedded_engine(
    shared_data: Path, model: Path, preset: Path, tmp_path: Path
) -> None:
    few = "--k 1 --budget 8 --kv-tokens 20000 --variants single agent --set agentflow.max_steps=1".split()
    assert cli.main(arguments(model, preset, shared_data / "aime24.jsonl", tmp_path, *few)) == 0
    variants = read_json(tmp_path / "aime.json")["aime24"]["variants"]
    for variant in ("single", "agent"):
        assert variants[variant]["failures"] == {}
        assert variants[variant]["scores"]["avg@1"]["mean"] == 0.0
        assert variants[variant]["truncated"] > 0.9
    assert "26.7" in (tmp_path / "table.md").read_text()


def test_each_variant_has_its_model(model: Path, preset: Path, problems: Path, tmp_path: Path) -> None:
    command = arguments(model, preset, problems, tmp_path, "--baseline", "owner/start", "--budget", "77")
    _, evaluation = cli.prepare(cli.parser().parse_args(command))
    assert evaluation.models == {"single": "owner/start", "agent-untrained": "owner/start", "agent": str(model)}
    assert evaluation.recipe.dump()["agentflow"]["planner"]["final"]["max_tokens"] == 77


def test_what_cannot_be_is_said(model: Path, preset: Path, problems: Path, tmp_path: Path, capsys: Any) -> None:
    assert cli.main(arguments(model, preset, problems, tmp_path, "--variants", "agent-untrained")) == 1
    assert "--baseline" in capsys.readouterr().err
    absent = ["--policy-url", "http://127.0.0.1:9", "--k", "1"]
    assert cli.main(arguments(model, preset, problems, tmp_path / "out", *absent)) == 1
    assert "policy url http://127.0.0.1:9: no answer" in capsys.readouterr().err
    lacking = ["--variants", "agent", "--k", "1", "--set", "agentflow.roles.verifier.engine=referee"]
    assert cli.main(arguments(model, preset, problems, tmp_path / "lacking", *lacking)) == 1
    assert "roles.referee is missing" in capsys.readouterr().err
