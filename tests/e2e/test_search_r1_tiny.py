"""Search-R1's `tiny` preset at its smallest scale, with its retrieval service: warm start, GRPO, variants, report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from agentic.search_r1.tiny import start_model, world
from agentic.search_r1.tiny.baselines import BASELINES
from agentic.search_r1.tiny.tasks import generate
from benchmarks.heldout.evaluate import main as evaluate
from core.data import write_jsonl
from core.runs.files import read_jsonl
from core.runs.record import read_rollouts
from core.runs.run_folder import RunFolder
from core.train.command import main as train
from tests.kit import serve_corpus

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SMALLEST = {
    "warm_start.steps": 8, "warm_start.copy_steps": 1, "warm_start.batch_size": 8, "rollout.tasks_per_step": 2,
    "rollout.group_size": 4, "run.steps": 2, "run.eval_every": 2, "run.eval_tasks": 4, "run.seeds": [0],
    "model.device": "cpu",
}  # fmt: skip


def test_it_trains_against_its_service_and_every_variant_is_evaluated(tmp_path: Path) -> None:
    start_model.build(tmp_path / "model", seed=0)
    world.write_corpus(tmp_path / "corpus.jsonl")
    for split in ("train", "dev", "test"):
        write_jsonl(tmp_path / f"{split}.jsonl", generate(split, 6))  # type: ignore[arg-type]
    files = {
        "data.train": tmp_path / "train.jsonl", "data.eval": tmp_path / "dev.jsonl", "model.path": tmp_path / "model",
        "search_r1.addresses": tmp_path / "addresses.yaml",
    }  # fmt: skip
    settings = [word for key, value in (SMALLEST | files).items() for word in ("--set", f"{key}={value}")]
    out = tmp_path / "run"
    with serve_corpus(tmp_path / "corpus.jsonl") as url:
        (tmp_path / "addresses.yaml").write_text(yaml.safe_dump({"retrieval": url}))
        assert train(["search_r1", "--preset", "tiny", "--out", str(out), *settings]) == 0
        data = ["--data", str(tmp_path / "test.jsonl"), "--by", "searches"]
        assert evaluate(["search_r1", "--run", str(out), *data]) == 0
    steps = [record for record in read_jsonl(out / "seed-0" / "metrics.jsonl") if record["stage"] == "train"]
    assert [record["step"] for record in steps] == [1, 2]
    for record in steps:
        assert record["failures"] == {}
        assert record.keys() >= {"turns", "calls_search", "invalid_actions", "answered"}
    rollouts = [r for r in read_rollouts(RunFolder(out).rollouts_path(0)) if r.stage == "train"]
    assert len(rollouts) == 2 * 2 * 4
    assert all(turn.trained for rollout in rollouts for turn in rollout.turns)
    variants = json.loads((out / "summary.json").read_text())["variants"]
    assert variants.keys() == {"trained", "untrained", "untrained-greedy", *BASELINES}
    assert variants["aimless-search"]["0"]["measures"]["calls_search"] >= 1
    assert variants["no-search"]["0"]["measures"]["calls_search"] == 0
