"""Rollouts as OpenTelemetry's spans: each turn and call is there once, under its rollout, with its tokens."""

from __future__ import annotations

import json
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


def test_a_rollout_has_one_name_however_it_was_chosen(run: Path) -> None:
    every = list(read_rollouts(run / "seed-0/rollouts.jsonl.gz"))
    second_group = [rollout.model_copy(update={"group": 1}) for rollout in every if rollout.step == 2]
    whole = [trace.name for trace in traces.make_traces([*every, *second_group], 0)]
    assert len(set(whole)) == len(whole) == 12
    assert [trace.name for trace in traces.make_traces(second_group, 0)] == whole[-4:]


def test_a_task_is_chosen_and_an_absent_one_is_an_error(run: Path) -> None:
    assert traces.main([str(run), "--to", "file", "--task", "t1"]) == 0
    text = (run / "seed-0/traces.jsonl").read_text()
    assert all('"t1"' in json.dumps(line) for line in read_jsonl(run / "seed-0/traces.jsonl"))
    assert '"t2"' not in text
    assert traces.main([str(run), "--to", "file", "--task", "t3"]) == 1


def test_wandb_gets_a_table_offline(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="needs wandb: pip install wandb")
    logged: list[Any] = []
    monkeypatch.setattr(wandb, "init", lambda **options: FakeRun(options, logged))
    assert traces.main([str(run), "--to", "wandb"]) == 0
    ((options, data),) = logged
    assert options["mode"] == "offline"
    recorded = [r for r in read_rollouts(run / "seed-0/rollouts.jsonl.gz") if r.step == 2]
    assert [row[2] for row in data["rollouts"].data] == [r.reward for r in recorded]


class FakeRun:
    def __init__(self, options: dict[str, Any], logged: list[Any]):
        self._options, self._logged = options, logged

    def log(self, data: dict[str, Any]) -> None:
        self._logged.append((self._options, data))

    def finish(self) -> None:
        return None
