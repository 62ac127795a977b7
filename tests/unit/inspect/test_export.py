"""Rollouts leave as OpenEnv's TrainingTrace or Harbor's ATIF, and come back equal."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest

from core.inspect.dumps import read_dump
from core.inspect.export import main
from core.runs.record import RecordedRollout, RolloutLog, TrainedRow, read_rollouts, record_rollout
from core.types import Completion, Row, Task, Trajectory, Turn
from tests.unit.report.conftest import record_one

FORMS = ("training-trace", "atif")
WORDS = ("", "plain", "two\nlines", "“Zürich” 東京 🙂", '{"tool": "<think>"}', "\u202e\u200b\0", "\ud83d\ude42")
PIECES = [b"a", b"\n", "é".encode(), "🙂".encode()[:2], "🙂".encode()[2:], b"\xff", b" the", b"</think>"]


def token_bytes(ids: Any) -> list[bytes]:
    return [PIECES[token % len(PIECES)] + str(token).encode() for token in ids]


def make_rollout(rng: Random, number: int) -> dict[str, Any]:
    """Make a rollout of up to six turns, which goes on, branches, begins anew, fails or is cut off."""
    ids = [rng.randrange(300) for _ in range(rng.randint(1, 20))]
    turns: list[Turn] = []
    for _ in range(rng.choice([0, 1, 1, 2, 3, 6])):
        way = rng.choice(["on", "on", "branch", "anew"])
        earlier = rng.choice(turns) if turns and way != "anew" else None
        if earlier is not None:
            ids = [*earlier.prompt_ids, *earlier.completion.token_ids]
            ids = ids[: rng.randint(1, len(ids))] if way == "branch" else ids
        ids = [*ids, *(rng.randrange(300) for _ in range(rng.randint(0, 9)))]
        sampled = tuple(rng.randrange(300) for _ in range(rng.choice([0, 1, 5, 12])))
        odd = rng.choice([math.nan, -math.inf, 1e-7]) if rng.random() < 0.1 else -0.25
        logprobs = tuple(odd if rng.random() < 0.3 else -rng.random() * 9 for _ in sampled)
        versions = ((str(number % 7), 1),) if len(sampled) > 1 and rng.random() < 0.2 else ()
        finish = rng.choice(["stop", "length", "abort"])
        completion = Completion(sampled, logprobs, finish, str(number % 9), earlier_versions=versions)  # type: ignore[arg-type]
        seconds = (float(len(turns)), len(turns) + 0.5) if rng.random() < 0.5 else None
        turns.append(Turn(rng.choice(["act", "summary", "judge"]), tuple(ids), completion, rng.random() < 0.8, seconds))
    status = rng.choice(["completed", "completed", "truncated", "failed"])
    reward = None if status == "failed" else rng.choice([0.0, 1.0, -0.5, 1 / 3])
    failure = rng.choice(["deadline", "exception_KeyError"]) if status == "failed" else None
    calls = [
        {"tool": "search", "query": rng.choice(WORDS[:5]), "seconds": rng.random()} for _ in range(rng.randint(0, 2))
    ]
    log = {"answer": rng.choice(WORDS[:5]), "calls": calls, "error": None}
    task = Task(f"task-{number}-{rng.choice('aé東')}", rng.choice(WORDS[:6]), (rng.choice(WORDS[1:5]),))
    trajectory = Trajectory(task.task_id, tuple(turns), status, reward, failure, {"turns": len(turns)}, log)  # type: ignore[arg-type]
    rows = []
    if turns and turns[0].trained and turns[0].completion.token_ids:
        first = turns[0].completion
        row = Row(
            (*turns[0].prompt_ids, *first.token_ids), (1,) * len(first.token_ids), first.logprobs, 0.5, number, (0,)
        )
        rows = [TrainedRow(row, first.logprobs, rng.choice([None, 0.125]))]
    return record_rollout(rng.choice(["train", "eval"]), number // 50, number % 5, task, trajectory, rows)  # type: ignore[arg-type]


def make_record(path: Path, count: int, seed: int = 0) -> Path:
    """Write a record of random rollouts, 50 a step."""
    rng = Random(seed)
    log = RolloutLog(path, token_bytes, {"cell": {"variant": "trained", "data": "made up"}})
    for start in range(0, count, 50):
        log.append([make_rollout(rng, number) for number in range(start, min(count, start + 50))])
    return path


def show(rollout: RecordedRollout) -> tuple[dict[str, Any], list[bytes]]:
    """Return all that a rollout holds, and the text of its ids."""
    used = sorted({token for turn in rollout.turns for token in (*turn.prompt, *turn.sampled)})
    return rollout.model_dump(exclude={"pieces"}), [rollout.piece(token) for token in used]


@pytest.mark.parametrize("form", FORMS)
def test_a_thousand_rollouts_go_out_and_come_back_equal(form: str, tmp_path: Path) -> None:
    record = make_record(tmp_path / "rollouts.jsonl.gz", 1000)
    out, back = tmp_path / "out.jsonl", tmp_path / "back.jsonl.gz"
    assert main([str(record), "--to", form, "--out", str(out)]) == 0
    assert main([str(out), "--to", "record", "--out", str(back)]) == 0
    ours, theirs, again = (list(map(show, read_dump(path))) for path in (record, out, back))
    assert len(ours) == 1000
    assert theirs == ours
    assert again == ours
    rollouts = list(read_rollouts(record))
    assert {rollout.status for rollout in rollouts} == {"completed", "truncated", "failed"}
    assert any(not rollout.turns for rollout in rollouts)
    assert any(None in turn.logprobs for rollout in rollouts for turn in rollout.turns)
    assert any(turn.base for rollout in rollouts for turn in rollout.turns)


def test_both_have_every_id_mask_and_log_prob(tmp_path: Path) -> None:
    record = make_record(tmp_path / "rollouts.jsonl.gz", 50)
    for form in FORMS:
        assert main([str(record), "--to", form, "--out", str(tmp_path / form)]) == 0
    lines = [[json.loads(line) for line in (tmp_path / form).open()] for form in FORMS]
    assert len({trajectory["session_id"] for trajectory in lines[FORMS.index("atif")]}) == 50
    for rollout, trace, trajectory in zip(read_rollouts(record), *lines, strict=True):
        steps = [step for step in trajectory["steps"] if step["source"] == "agent"]
        assert trace["reward"] == trajectory["final_metrics"]["extra"]["reward"] == rollout.reward
        for prompt, turn, call, step in zip(
            rollout.prompts, rollout.turns, trace["training_trace"]["turns"], steps, strict=True
        ):
            assert call["prompt_token_ids"] == step["metrics"]["prompt_token_ids"] == prompt
            assert call["completion_token_ids"] == step["metrics"]["completion_token_ids"] == turn.sampled
            assert call["per_token_logps"] == step["metrics"]["logprobs"]
            assert [min(x, 0) if x is not None else 0 for x in turn.logprobs] == call["per_token_logps"]
            mask = [int(turn.trained and x is not None) for x in turn.logprobs]
            assert call["loss_mask"] == [0] * len(prompt) + mask
            assert step["message"] == rollout.decode(turn.sampled)


def test_what_a_tool_said_is_the_observation_of_the_step_before(tmp_path: Path) -> None:
    ids = [(1, 2), (1, 2, 3, 4, 5), (1, 9)]
    turns = tuple(Turn("act", prompt, Completion((3, 4), (-1.0, -1.0), "stop"), True) for prompt in ids)
    record = record_one(tmp_path / "rollouts.jsonl.gz", Trajectory("t", turns, reward=1.0))
    assert main([str(record), "--to", "atif", "--out", str(tmp_path / "a.jsonl")]) == 0
    steps = json.loads((tmp_path / "a.jsonl").read_text())["steps"]
    assert [step["source"] for step in steps] == ["user", "agent", "agent", "user", "agent"]
    assert steps[1]["observation"]["results"] == [{"content": "5"}]
    assert steps[3]["message"] == "19"
    assert "observation" not in steps[2]


def test_lines_that_others_wrote_are_read_and_nothing_of_them_is_lost(tmp_path: Path) -> None:
    call = {"prompt_token_ids": [1, 2], "completion_token_ids": [3, 4], "per_token_logps": [-1.0, -2.0]}
    rest = {"node_id": "n1", "loss_mask": [0, 0, 0, 1], "request": {"model": "m"}, "metadata": {"index": 0}}
    reply = {"choices": [{"finish_reason": "length"}]}
    trace = {"schema_version": 1, "turns": [{**call, **rest, "response": reply}]}
    metrics = {"prompt_token_ids": [1, 2], "completion_token_ids": [3], "logprobs": [-0.5], "cost_usd": 0.1}
    step = {"step_id": 2, "source": "agent", "message": "hi", "metrics": metrics}
    steps = [{"step_id": 1, "source": "user", "message": "Hello"}, step]
    trajectory = {"schema_version": "ATIF-v1.6", "agent": {"name": "terminus", "version": "2"}, "session_id": "s"}
    path = tmp_path / "others.jsonl"
    path.write_text(json.dumps(trace) + "\n" + json.dumps({**trajectory, "steps": steps}) + "\n")
    first, second = read_dump(path)
    assert (first.prompts, first.turns[0].sampled, first.turns[0].logprobs) == ([[1, 2]], [3, 4], [-1.0, -2.0])
    assert (first.turns[0].trained, first.turns[0].finish_reason) == (True, "length")
    kept = first.sample["foreign"]["turns"][0]
    assert {name: kept[name] for name in rest} == rest
    assert (second.task_id, second.prompts, second.turns[0].sampled) == ("s", [[1, 2]], [3])
    assert second.sample["foreign"]["steps"][1]["metrics"] == {"cost_usd": 0.1}
    assert main([str(path), "--to", "record", "--out", str(tmp_path / "ours.jsonl.gz")]) == 0
    assert list(map(show, read_rollouts(tmp_path / "ours.jsonl.gz"))) == [show(first), show(second)]


@pytest.mark.parametrize(
    "line",
    [
        '{"schema_version": 2, "turns": []}',
        '{"schema_version": "ATIF-v2.0", "steps": []}',
        '{"schema_version": "ATIF-v1.8", "steps": [{"source": "agent", "metrics": {"prompt_tokens": 4}}]}',
        '{"schema_version": 1, "turns": [{"prompt_token_ids": [1], "completion_token_ids": [2], "per_token_logps": [],'
        ' "loss_mask": [0, 1]}]}',
        "[]",
        "no JSON",
    ],
)
def test_a_line_that_is_no_rollout_is_refused_by_name(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text(f"{line}\n")
    assert main([str(tmp_path / "a.jsonl"), "--to", "record", "--out", str(tmp_path / "b.gz")]) == 2
    assert "a.jsonl:1: no rollout as TrainingTrace 1 or ATIF, with token ids of each call" in capsys.readouterr().err


def test_an_empty_prompt_and_a_file_that_is_there_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turn = Turn("act", (), Completion((1,), (-1.0,), "stop"), True)
    path = record_one(tmp_path / "rollouts.jsonl.gz", Trajectory("t", (turn,), reward=1.0))
    assert main([str(path), "--to", "training-trace", "--out", str(tmp_path / "a.jsonl")]) == 2
    assert "task t: turn 0 has an empty prompt" in capsys.readouterr().err
    assert not (tmp_path / "a.jsonl").exists()
    assert main([str(path), "--to", "atif", "--out", str(path)]) == 2
    assert "is there already" in capsys.readouterr().err
