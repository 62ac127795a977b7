"""The AIME evaluation as a command: its variants, over the wire and embedded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from agentic.memagent.world import WORLD
from benchmarks.aime import evaluate as cli
from core.runs.files import read_json
from core.runs.run_folder import RunFolder
from core.text.tokenizer import load_tokenizer
from tests.kit import answer_health, make_sglang_reply, serve_app

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

POLICY = {"role": "policy"}
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


def test_the_agent_is_a_variant_beside_the_single_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A planner that only ever boxes makes two malformed steps and then answers the first problem, 0, or 999."""
    model = WORLD.build_model(tmp_path / "model", seed=0)
    config = read_json(model / "config.json")  # with room for long problems
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    preset, problems, run = tmp_path / "plain.yaml", tmp_path / "sums.jsonl", tmp_path / "run"
    preset.write_text(yaml.safe_dump(RECIPE))
    records = [{"id": f"p{i}", "problem": f"What is {i} plus {i}?", "answer": str(2 * i)} for i in range(3)]
    problems.write_text("".join(json.dumps(record) + "\n" for record in records))
    tokenizer, app = load_tokenizer(model), web.Application()

    async def generate(request: web.Request) -> web.Response:
        return make_sglang_reply([*tokenizer.encode("\\boxed{999}"), tokenizer.eos_token_id])

    app.add_routes([web.post("/generate", generate), web.get("/health", answer_health)])
    with serve_app(app) as url:
        named = {"--model": model, "--preset": preset, "--out": run, "--threads": 1, "--policy-url": url}
        shared = [*(str(word) for option in named.items() for word in option), "--k", "2", "--tasks", "2"]
        for variant in ("single", "agent"):
            assert cli.main([*shared, "--data", str(problems), "--variants", variant]) == 0
        variants = {result.variant: result.notes for result in RunFolder(run).evaluations()}
        assert variants["agent"]["parse_errors"] == 1.0
        assert variants["agent"]["mean_turns"] == 3.0
        assert variants["single"]["parse_errors"] == 0.0
        assert "agent − single" in capsys.readouterr().out
        # Other problems in a file of the same name do not go into the same folder.
        (tmp_path / "other").mkdir()
        other = tmp_path / "other" / problems.name
        other.write_text(problems.read_text().replace("plus", "and"))
        assert cli.main([*shared, "--data", str(other), "--variants", "single"]) == 1
        assert "otherwise: settings.problems was 'sha256:" in capsys.readouterr().err
