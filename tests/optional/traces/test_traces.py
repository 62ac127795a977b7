"""MLflow's own client reads back what the record says: counts of spans, tokens and rewards.

Needs `pip install mlflow` (pyproject.toml's extra `mlflow`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from core.config import Recipe
from core.inspect import traces
from core.runs.record import read_rollouts
from core.runs.trackers import open_trackers
from tests import kit

pytestmark = [pytest.mark.optional, pytest.mark.timeout(300)]
mlflow = pytest.importorskip("mlflow", reason="needs mlflow: pip install mlflow")


def test_mlflow_reads_back_what_the_record_says(run: Path) -> None:
    recipe = kit.make_recipe(Recipe, method="memagent", run={"steps": 1, "trackers": ["mlflow"]})
    trackers = open_trackers(recipe, run / "seed-0", "run-seed-0")
    for step in (1, 2):
        trackers.log(step, {"train/reward": 0.25 * step})
    trackers.close()
    assert trackers.failures == {}
    for step in (1, 2, 2):  # the second time there is nothing new
        assert traces.main([str(run), "--to", "mlflow", "--step", str(step)]) == 0

    mlflow.set_tracking_uri(f"sqlite:///{run}/seed-0/mlflow/mlflow.db")
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("memagent").experiment_id
    (logged,) = client.search_runs([experiment])
    history = client.get_metric_history(logged.info.run_id, "train/reward")
    assert [(metric.step, metric.value) for metric in history] == [(1, 0.25), (2, 0.5)]

    found = client.search_traces(locations=[experiment], max_results=500)
    recorded = list(read_rollouts(run / "seed-0/rollouts.jsonl.gz"))
    spans = [span for trace in found for span in trace.data.spans]
    assert len(found) == len(recorded) == 8
    assert len(spans) == sum(1 + len(r.turns) + len(r.log["calls"]) for r in recorded)
    by_kind = {name: [span for span in spans if span.name.split()[0] == name] for name in ("rollout", "turn", "tool")}
    rewards = sorted(span.attributes["tokentrue.reward"] for span in by_kind["rollout"])
    assert rewards == sorted(r.reward for r in recorded if r.reward is not None)
    for name, counted in (
        ("gen_ai.usage.input_tokens", sum(len(prompt) for r in recorded for prompt in r.prompts)),
        ("gen_ai.usage.output_tokens", sum(len(turn.sampled) for r in recorded for turn in r.turns)),
    ):
        for kind in ("rollout", "turn"):
            assert sum(span.attributes[name] for span in by_kind[kind]) == counted
    texts = sorted(span.outputs for span in by_kind["turn"])
    assert texts == sorted(r.decode(turn.sampled) for r in recorded for turn in r.turns)
    assert {trace.info.trace_metadata.get("mlflow.sourceRun") for trace in found} == {logged.info.run_id}
