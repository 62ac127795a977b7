"""Samples into Tasks, Trajectories into Samples and back."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from core.backends.rollouts import summarize_notes
from core.backends.slime.samples import fan_out, fill_sample, read_outcome, read_task, read_trajectory
from core.data.files import DataError
from core.types import Task, Trajectory
from tests.unit.backends.slime.conftest import trajectory, turn
from tests.unit.backends.slime.standin import Sample


def test_a_task_from_slimes_record() -> None:
    metadata = {"context": "A document.", "ground_truth": ["acorn", "almond"], "level": 3}
    prompt = [{"role": "user", "content": "Which?"}]
    sample = Sample(group_index=4, index=9, prompt=prompt, label="acorn", metadata=metadata)
    expected = Task("train-4", "Which?", ("acorn", "almond"), "A document.", {"level": 3})
    assert read_task(sample, "/data/train.jsonl") == expected


def test_a_task_from_our_own_record() -> None:
    record = {"task_id": "dev-7", "question": "Which?", "answers": ["acorn"], "context": "A document."}
    record |= {"metadata": {"a": 1}}
    sample = Sample(index=9, prompt="Which?", label="acorn", metadata=record)
    assert read_task(sample, "dev.jsonl") == Task("dev-7", "Which?", ("acorn",), "A document.", {"a": 1})


def test_a_bad_task_names_file_prompt_and_field() -> None:
    with pytest.raises(DataError, match=r"train.jsonl, prompt 4: field 'prompt'"):
        read_task(Sample(group_index=4, prompt="", label="a"), "train.jsonl")
    with pytest.raises(DataError, match=r"field 'label'"):
        read_task(Sample(group_index=4, prompt="q", label=None), "train.jsonl")


def test_there_and_back(batch: list[list[Trajectory]], samples: list[Sample]) -> None:
    flat = [member for group in batch for member in group]
    for member, sample in zip(flat, samples, strict=True):
        back = read_trajectory(sample, None)
        assert (back.turns, back.status, back.reward) == (member.turns, member.status, member.reward)
        assert (back.failure, back.metrics) == (member.failure, member.metrics)
        assert back.log["error"] == member.log.get("error", "")


def test_the_containers_own_fields_agree_with_each_other(samples: list[Sample]) -> None:
    for sample in samples:
        assert sample.response_length == len(sample.loss_mask) == len(sample.rollout_log_probs) < len(sample.tokens)
    first = samples[0]
    assert first.tokens == [7, 8, 1, 2, 3, 4, 5, 6]
    assert first.loss_mask == [1, 1, 1, 1, 0, 0]
    assert (first.reward, first.status, first.weight_versions) == (1.0, Sample.Status.COMPLETED, ["v3"] * 3)
    assert (first.prefix_cache_info.cached_tokens, first.prefix_cache_info.total_prompt_tokens) == (3, 6)


def test_a_failed_rollout_is_the_row_that_all_of_slime_accepts(samples: list[Sample]) -> None:
    failed = samples[2]
    row = (failed.tokens, failed.response_length, failed.loss_mask, failed.rollout_log_probs)
    assert row == ([0, 0], 1, [0], [0.0])
    assert (failed.reward, failed.remove_sample, failed.status) == (0.0, True, Sample.Status.FAILED)
    assert failed.metadata["agentic"]["failure"] == "deadline"


def test_a_second_attempt_leaves_nothing_of_the_first() -> None:
    sample, fresh = (Sample(group_index=0, index=0, metadata={"level": 1}) for _ in range(2))
    fill_sample(sample, trajectory(None, failure="aborted"), None)
    assert sample.status == Sample.Status.ABORTED
    fill_sample(sample, trajectory(1.0, turn(1)), None, "text")
    fill_sample(fresh, trajectory(1.0, turn(1)), None, "text")
    assert sample == fresh


def test_a_reward_key_wraps_the_reward() -> None:
    sample = Sample()
    fill_sample(sample, trajectory(0.5, turn(1)), "score")
    assert sample.reward == {"score": 0.5}
    assert read_trajectory(sample, "score").reward == 0.5


def test_a_sample_that_a_filter_removed_leaves_the_baseline(samples: list[Sample]) -> None:
    samples[0].remove_sample = True
    removed = read_trajectory(samples[0], None)
    assert (removed.status, removed.failure) == ("failed", "removed")


@pytest.mark.parametrize("read", [read_trajectory, read_outcome])
def test_a_foreign_sample_is_told_apart(read: Callable[[Sample, None], Trajectory]) -> None:
    with pytest.raises(ValueError, match="--custom-generate-function-path"):
        read(Sample(index=3), None)


def test_fan_out_gives_a_sample_for_each_trained_turn(samples: list[Sample]) -> None:
    parts = fan_out(samples[0], "turn")
    assert [part.tokens for part in parts] == [[7, 8, 1, 2, 3], [7, 8, 4]]
    assert [part.loss_mask for part in parts] == [[1, 1, 1], [1]]
    assert {part.rollout_id for part in parts} == {samples[0].index}
    assert all(part.reward == 1.0 for part in parts)


def test_fan_out_gives_a_sample_for_each_segment() -> None:
    turns = (turn(1, 2), turn(5, prompt=(9,)), turn(3, prompt=(7, 8, 1, 2, 6)), turn(4, prompt=(9, 5), trained=False))
    sample = Sample(group_index=0, index=3)
    fill_sample(sample, trajectory(1.0, *turns), reward_key=None)
    first, second = fan_out(sample, "segment")
    assert (first.tokens, first.loss_mask, first.response_length) == ([7, 8, 1, 2, 6, 3], [1, 1, 0, 1], 4)
    assert first.rollout_log_probs == pytest.approx([-0.1, -0.2, 0.0, -0.3])
    assert (second.tokens, second.loss_mask) == ([9, 5], [1])
    assert (first.rollout_id, second.rollout_id, sample.rollout_id) == (3, 3, None)


@pytest.mark.parametrize("place", [2, 4])
def test_fan_out_of_a_rollout_without_trained_turns_is_one_masked_sample(samples: list[Sample], place: int) -> None:
    whole = copy.deepcopy(samples[place])
    (part,) = fan_out(samples[place], "turn")
    assert part.response_length == len(part.loss_mask)
    assert not any(part.loss_mask)
    assert part.remove_sample == whole.remove_sample
    assert samples[place] == whole


def test_events_are_summed_over_rollouts_and_other_metrics_averaged_as_in_embedded_training() -> None:
    """A rollout without an answer has no log-prob of one, and one of another environment no score: that is no 0."""
    notes = [{"status": "completed", "metrics": {"drift": float(n), "turns": float(n)}} for n in (1, 3)]
    notes[1]["metrics"] |= {"answer_logprob": -0.5, "reference_kl": 2.0, "environment_score": 3.0, "end_answered": 1.0}
    told = summarize_notes([*notes, {"status": "failed", "failure": "lost", "metrics": {}}])
    averages = {"answer_logprob": -0.5, "reference_kl": 2.0, "environment_score": 3.0}
    averages |= {"drift": 4.0, "turns": 2.0, "end_answered": 0.5}
    assert {name: told[name] for name in averages} == averages
