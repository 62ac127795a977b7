"""Every statistic against a count by hand or by brute force."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.aime.results import aime_statistics, score_majority
from benchmarks.harness.samples import Sample
from core.report.stats import wilson
from tests.unit.benchmarks.conftest import make_sample


def sample(task_id: str, repeat: int, correct: bool, answer: str | None, **fields: Any) -> Sample:
    return make_sample(task_id, repeat, reward=float(correct), graded={"answer": answer}, **fields)


def graded(task_id: str, answers: list[str | None], label: str) -> list[Sample]:
    return [sample(task_id, i, answer == label, answer) for i, answer in enumerate(answers)]


@pytest.mark.parametrize(
    ("answers", "score"),
    [
        (["73", "73", "25"], 1.0),
        (["73", "25", "25"], 0.0),
        (["73", "25"], 0.5),
        (["73", "25", "9"], 1 / 3),
        (["73", "73", "25", "25", "9"], 0.5),
        ([None, None, None, "73"], 1.0),
        ([None, None], 0.0),
    ],
)
def test_majority_votes_over_answers_and_splits_ties(answers: list[str | None], score: float) -> None:
    assert score_majority(graded("a", answers, "73")) == pytest.approx(score)
    assert score_majority(graded("a", answers[::-1], "73")) == pytest.approx(score)


def test_every_number_of_two_problems_and_four_samples() -> None:
    easy = graded("easy", ["1", "1", "1", "2"], "1")
    hard = [
        sample("hard", 0, False, None, turns=9, sampled_tokens=50, status="truncated"),
        sample("hard", 1, False, "8", turns=3, sampled_tokens=30, metrics={"command_errors": 2}),
        sample("hard", 2, True, "7", turns=3, sampled_tokens=40, metrics={"parse_errors": 1, "tool_errors": 1}),
        sample("hard", 3, False, None, turns=0, status="failed", failure="deadline"),
    ]
    stats = aime_statistics([*easy, *hard])
    assert stats.k == 4
    assert list(stats.avg) == [0.75, 0.25]
    assert stats.pass_at == {2: [1.0, 0.5], 4: [1.0, 1.0]}
    assert list(stats.maj) == [1.0, 0.5]
    # The means of the repeats are 1/2, 1/2, 1 and 0; t(3 degrees) = 3.182; their standard deviation is sqrt(1/6).
    half = 3.182 * math.sqrt(1 / 6) / 2
    assert stats.repeats == pytest.approx((max(0, 0.5 - half), min(1, 0.5 + half)))
    assert (stats.truncated, stats.no_answer, stats.parse_errors, stats.tool_errors) == (1 / 8, 2 / 8, 2 / 8, 1 / 8)
    assert stats.failures == {"deadline": 1}
    assert (stats.mean_turns, stats.mean_tokens) == ((4 + 15) / 8, 120 / 8)
    estimates = stats.estimates()
    assert list(estimates) == ["avg@4", "pass@2", "pass@4", "maj@4"]
    # A bootstrap of two problems draws both of one with probability 1/4 each: the interval is their range.
    assert (estimates["avg@4"].mean, estimates["avg@4"].low, estimates["avg@4"].high) == (0.5, 0.25, 0.75)
    assert estimates["maj@4"].mean == 0.75


def test_repeats_that_agree_still_leave_an_interval() -> None:
    stats = aime_statistics([*graded("a", ["1", "1"], "1"), *graded("b", ["2", "2"], "1")])
    assert stats.repeats == pytest.approx(wilson(2, 4))
