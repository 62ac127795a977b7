"""Rollouts as OpenTelemetry's spans: each turn and call is there once, under its rollout, with its tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.inspect import traces
from core.runs.files import read_jsonl
from core.runs.record import read_rollouts
from tests.unit.runs.fake_policy import record_run


@pytest.fixture
def run(tokenizer: Any, tmp_path: Path) -> Path:
    call = {"alias": "expert-1", "seconds": 0.5, "failure": None}
    return record_run(tmp_path / "run", tokenizer, lambda place: {} if place else {"calls": [call]})


def read_values(span: dict[str, Any]) -> dict[str, Any]:
    return {pair["key"]: next(iter(pair["value"].values())) for pair in span["attributes"]}


def test_a_file_has_every_span_of_the_last_step(run: Path) -> None:
    assert traces.main([str(run), "--to", "file"]) == 0
    lines = list(read_jsonl(run / "seed-0/traces.jsonl"))
    recorded = [r for r in read_rollouts(run / "seed-0/rollouts.jsonl.gz") if r.step == 2]
    assert len(lines) == len(recorded) == 4
    for line, rollout in zip(lines, recorded, strict=True):
        root, *children = line["resourceSpans"][0]["scopeSpans"][0]["spans"]
        assert len(children) == len(rollout.turns) + len(rollout.log.get("calls", []))
        assert "parentSpanId" not in root
        assert {span["parentSpanId"] for span in children} == {root["spanId"]}
        assert len({span["spanId"] for span in (root, *children)}) == 1 + len(children)
        assert read_values(root)["tokentrue.reward"] == rollout.reward
        for span, prompt, turn in zip(children, rollout.prompts, rollout.turns, strict=False):
            values = read_values(span)
            assert int(values["gen_ai.usage.input_tokens"]) == len(prompt)
            assert int(values["gen_ai.usage.output_tokens"]) == len(turn.sampled)
            assert values["tokentrue.output"] == rollout.decode(turn.sampled)
        begins = [int(span["startTimeUnixNano"]) for span in children]
        assert begins == sorted(begins)
        assert int(root["startTimeUnixNano"]) <= begins[0]
        assert int(children[-1]["endTimeUnixNano"]) <= int(root["endTimeUnixNano"])
    assert [span["name"] for span in lines[0]["resourceSpans"][0]["scopeSpans"][0]["spans"]][-1] == "tool expert-1"
    ids = {line["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["traceId"] for line in lines}
    assert len(ids) == 4
    assert all(len(one) == 32 for one in ids)
