"""The real client of Weights & Biases writes offline what the record says; its file is read with its own messages.

Needs `pip install wandb`, which a plain setup brings; its service takes seconds to start.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.config import Recipe
from core.inspect import traces
from core.runs.record import read_rollouts
from core.runs.trackers import open_trackers
from tests import kit

pytestmark = [pytest.mark.optional, pytest.mark.timeout(300)]
wandb = pytest.importorskip("wandb", reason="needs wandb: pip install wandb")


BLOCK = 32768
HEAD = 7
"""A file of W&B is a log of LevelDB behind a head of 7 bytes: pieces of records in blocks, which no piece crosses."""


def read_offline(path: Path) -> Iterator[Any]:
    """Yield the records of an offline run, which `wandb sync` would send."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), HEAD, b""
    assert data[:4] == b":W&B"
    while at < len(data):
        if BLOCK - at % BLOCK < HEAD:  # too little is left of the block for another piece
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEAD])
        whole += data[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def read_history(path: Path) -> list[dict[str, Any]]:
    return [
        {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
        for record in read_offline(path)
        if record.WhichOneof("record_type") == "history"
    ]


def test_wandb_holds_what_the_record_says(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:1")  # nobody listens there, and nobody is asked
    recipe = kit.make_recipe(Recipe, method="memagent", run={"steps": 1, "trackers": ["wandb"]})
    trackers = open_trackers(recipe, run / "seed-0", "run-seed-0")
    for step in (1, 2):
        trackers.log(step, {"train/reward": 0.25 * step})
    trackers.close()
    wandb.teardown()  # its service writes the file to the end
    assert trackers.failures == {}
    (curves,) = (run / "seed-0/wandb").glob("offline-run-*/run-*.wandb")
    logged = [(entry["step"], entry["train/reward"]) for entry in read_history(curves)]
    assert logged == [(1, 0.25), (2, 0.5)]

    assert traces.main([str(run), "--to", "wandb", "--step", "2"]) == 0
    wandb.teardown()
    (both,) = set((run / "seed-0/wandb").glob("offline-run-*/run-*.wandb")) - {curves}
    (entry,) = read_history(both)
    tables = {
        name: json.loads((both.parent / "files" / entry[f"{name}/path"]).read_text()) for name in ("rollouts", "spans")
    }
    rows = {name: [dict(zip(t["columns"], row, strict=True)) for row in t["data"]] for name, t in tables.items()}
    recorded = [r for r in read_rollouts(run / "seed-0/rollouts.jsonl.gz") if r.step == 2]
    assert [row["reward"] for row in rows["rollouts"]] == [r.reward for r in recorded]
    assert len(rows["spans"]) == sum(1 + len(r.turns) + len(r.log["calls"]) for r in recorded)
    for name, counted in (
        ("input_tokens", sum(len(prompt) for r in recorded for prompt in r.prompts)),
        ("output_tokens", sum(len(turn.sampled) for r in recorded for turn in r.turns)),
    ):
        for kind in ("rollout", "turn"):
            assert sum(row[name] for row in rows["spans"] if row["kind"] == kind) == counted
        assert sum(row[name] for row in rows["rollouts"]) == counted
    outputs = [row["output"] for row in rows["spans"] if row["kind"] == "turn"]
    assert outputs == [r.decode(turn.sampled) for r in recorded for turn in r.turns]
