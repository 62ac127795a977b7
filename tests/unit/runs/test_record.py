"""The record of rollouts: what is read is what was sampled, also after a crash, and a broken line is named."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from core.runs.files import append_batch, read_batches
from core.runs.record import RolloutLog, TrainedRow, read_rollouts, record_rollout
from core.text.tokenizer import token_bytes
from core.types import Completion, Row, Task, Trajectory, Turn
from tests.unit.runs.fake_policy import FakePolicy, record_group, run_group

TASK = Task("t1", "Who? \ud83d <b>", ("x", "y"))
ASKED = Task("t1", "Who?", ())
"""No tokenizer encodes a lone surrogate, but a record may have to keep one."""


def write(path: Path, tokenizer: Any) -> RolloutLog:
    return RolloutLog(path, lambda ids: token_bytes(tokenizer, ids))


def write_steps(path: Path, tokenizer: Any, count: int, seed: int) -> RolloutLog:
    """Record so many steps of a group each."""
    log, rng, policy = write(path, tokenizer), Random(seed), FakePolicy(tokenizer)
    for step in range(1, count + 1):
        log.append(record_group(policy, TASK, run_group(policy, ASKED, rng, "0"), step, rng))
    return log


def test_what_is_read_is_what_was_sampled(tmp_path: Path, tokenizer: Any) -> None:
    """Ids, texts, and log-probs to the last bit of float32; a lone surrogate in a question does no harm."""
    path, rng, policy = tmp_path / "seed-0" / "rollouts.jsonl.gz", Random(1), FakePolicy(tokenizer)
    log = write(path, tokenizer)
    groups = [run_group(policy, ASKED, rng, str(step), turns=6) for step in range(8)]
    for step, group in enumerate(groups, start=1):
        log.append(record_group(policy, TASK, group, step, rng))
    found = list(read_rollouts(path))
    for rollout, trajectory in zip(found, (member for group in groups for member in group), strict=True):
        assert (rollout.reward, rollout.status, rollout.answers) == (trajectory.reward, "completed", ["x", "y"])
        assert rollout.question == "Who? ? <b>"
        for turn, prompt, made in zip(rollout.turns, rollout.prompts, trajectory.turns, strict=True):
            assert (tuple(prompt), tuple(turn.sampled)) == (made.prompt_ids, made.completion.token_ids)
            assert (turn.trained, turn.weight_version) == (made.trained, made.completion.weight_version)
            assert turn.logprobs == pytest.approx(made.completion.logprobs, rel=1e-8)
            assert rollout.decode(prompt) == tokenizer.decode(made.prompt_ids)
    assert any(turn.base for rollout in found for turn in rollout.turns), "or nothing was written by reference"


def test_a_row_keeps_its_mask_and_the_trainers_log_probs_go_to_their_turns(tmp_path: Path, tokenizer: Any) -> None:
    turns = (
        Turn("a", (1, 2), Completion((3, 4), (-0.25, float("-inf")), "stop", "7"), True),
        Turn("b", (1, 2, 3, 4, 5), Completion((6,), (-0.5,), "length", "7"), True, (1.25, 2.00004)),
    )
    row = Row((1, 2, 3, 4, 5, 6), (1, 1, 0, 1), (-0.25, float("-inf"), 0.0, -0.5), 0.75, 0, (0, 1))
    trained = [TrainedRow(row, [-1.0, -2.0, 0.0, -3.0], 1 / 3)]
    log = write(tmp_path / "r.jsonl.gz", tokenizer)
    log.append([record_rollout("train", 8, 0, TASK, Trajectory("t1", turns, reward=1.0), trained)])
    (rollout,) = read_rollouts(log.path)
    assert [turn.trainer_logprobs for turn in rollout.turns] == [[-1.0, -2.0], [-3.0]]
    assert rollout.turns[0].logprobs == [-0.25, None]
    assert [turn.seconds for turn in rollout.turns] == [None, (1.25, 2.0)]
    assert [turn.seconds for turn in rollout.trajectory().turns] == [None, (1.25, 2.0)]
    assert (rollout.advantage, rollout.rows[0].trained, rollout.rows[0].length) == (0.75, [(2, 4), (5, 6)], 6)
    assert rollout.rows[0].loss_scale == 0.333333333
    assert (rollout.turns[1].base, rollout.turns[1].prompt) == ((0, 4), [5])


def test_what_is_kept_reads_as_before_without_what_was_deleted(tmp_path: Path, tokenizer: Any) -> None:
    """The first rollout, whose line has the head and the first texts, is deleted with it."""
    path, rng, policy = tmp_path / "r.jsonl.gz", Random(2), FakePolicy(tokenizer)
    log = RolloutLog(path, lambda ids: token_bytes(tokenizer, ids), {"cell": {"variant": "trained"}})
    for step, group in enumerate([run_group(policy, ASKED, rng, "0", turns=3) for _ in range(3)], start=1):
        for record in record_group(policy, TASK, group, step, rng):
            log.append([record])
    before = list(read_rollouts(path))
    assert {rollout.source for rollout in before} == {"trained"}
    assert log.keep(lambda record: record["step"] != 1) == sum(rollout.step == 1 for rollout in before)
    assert log.keep(lambda record: True) == 0
    after = list(read_rollouts(path))
    wanted = [rollout for rollout in before if rollout.step != 1]
    assert [(one.source, one.prompts) for one in after] == [(one.source, one.prompts) for one in wanted]
    texts = [[rollout.decode(prompt) for prompt in rollout.prompts] for rollout in after]
    assert texts == [[tokenizer.decode(prompt) for prompt in rollout.prompts] for rollout in wanted]


def test_a_record_torn_anywhere_keeps_its_whole_steps_and_goes_on(tmp_path: Path, tokenizer: Any) -> None:
    path, rng, policy = tmp_path / "r.jsonl.gz", Random(2), FakePolicy(tokenizer)
    log = write(path, tokenizer)
    batches = [record_group(policy, TASK, run_group(policy, ASKED, rng, "0"), step, rng) for step in (1, 2, 3)]
    for batch in batches:
        log.append(batch)
    whole, ends = path.read_bytes(), [end for end, _ in read_batches(path)]
    for length in [*rng.sample(range(len(whole)), 30), *ends, *(end - 1 for end in ends)]:
        path.write_bytes(whole[:length])
        steps = sum(end <= length for end in ends)
        assert [rollout.step for rollout in read_rollouts(path)] == sorted(4 * [1, 2, 3][:steps])
        again = write(path, tokenizer)
        for batch in batches[steps:]:
            again.append(batch)
        assert path.read_bytes() == whole


def test_a_reader_does_not_follow_a_writer_that_cuts_off_a_torn_step(tmp_path: Path, tokenizer: Any) -> None:
    path = write_steps(tmp_path / "r.jsonl.gz", tokenizer, 2, seed=2).path
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    reading = read_batches(path)
    end, _ = next(reading)
    with path.open("r+b") as file:
        file.truncate(end)
        file.seek(end)
        file.write(whole)
    assert list(reading) == []
    assert len(list(read_batches(path))) == 3


def test_rewind_deletes_what_a_resumed_run_repeats(tmp_path: Path, tokenizer: Any) -> None:
    log = write_steps(tmp_path / "r.jsonl.gz", tokenizer, 3, seed=3)
    log.rewind(1)
    assert [rollout.step for rollout in read_rollouts(log.path)] == [1] * 4
    log.rewind(-1)
    assert list(read_rollouts(log.path)) == []
    assert list(read_rollouts(tmp_path / "absent.jsonl.gz")) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "version"),
        ({"colour": "red"}, "colour"),
        ({"stage": "warm_start"}, "stage"),
        ({"reward": "much"}, "reward"),
        ({"turns": [{"logprobs": [-1.0]}]}, r"turns\.0\.logprobs has 1 entries for 2 tokens"),
        ({"turns": [{"base": [0, 3]}]}, r"turns\.0\.base"),
        (
            {"rows": [{"turns": [5], "length": 4, "trained": [], "ids_crc32": 0, "logprobs_crc32": 0}]},
            "rows name a turn",
        ),
    ],
)
def test_a_line_that_breaks_the_schema_is_named(tmp_path: Path, change: dict, message: str) -> None:
    turn = Turn("a", (1, 2), Completion((3, 4), (-0.25, -0.5), "stop"), True)
    record = record_rollout("train", 1, 0, TASK, Trajectory("t1", (turn,), reward=1.0))
    good = json.loads(json.dumps(record))
    bad = {**good, **change}
    if "turns" in change:
        bad["turns"] = [{**good["turns"][0], **change["turns"][0]}]
    append_batch(tmp_path / "r.jsonl.gz", [good, bad])
    with pytest.raises(ValueError, match=rf"r\.jsonl\.gz:2: .*{message}"):
        list(read_rollouts(tmp_path / "r.jsonl.gz"))


def test_a_file_that_is_no_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl.gz").write_text("plain text")
    with pytest.raises(ValueError, match=r"r\.jsonl\.gz is broken after byte 0"):
        list(read_rollouts(tmp_path / "r.jsonl.gz"))


def test_a_tail_garbled_by_a_loss_of_power_is_cut_off_and_kept_beside(tmp_path: Path, tokenizer: Any) -> None:
    path = write_steps(tmp_path / "r.jsonl.gz", tokenizer, 2, seed=1).path
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(4096))
    write(path, tokenizer)
    assert path.read_bytes() == whole
    assert (tmp_path / "r.jsonl.gz.broken").read_bytes() == whole + bytes(4096)
