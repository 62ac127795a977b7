from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.report.stats import (
    Estimate,
    bootstrap,
    difference_ci,
    fit_retention,
    independent_difference,
    mean_ci,
    paired_ci,
    t_margin,
    wilson,
)

scores = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def test_intervals_match_the_textbook() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(20, 20) == pytest.approx((0.8389, 1.0), abs=1e-4)

    assert t_margin([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5)


@pytest.mark.parametrize("wrong", [-1.0, 1.5, float("nan")])
def test_a_mean_of_other_numbers_than_scores_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match=f"scores: must lie in .*{wrong} does not"):
        mean_ci([[0.5, wrong]])


def test_a_task_that_all_seeds_have_counts_once() -> None:
    seeds = [[1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0]]
    shared, own, one = mean_ci(seeds, tasks=[range(4)] * 3), mean_ci(seeds), mean_ci(seeds[:1])
    assert (shared.mean, shared.n) == (own.mean, own.n) == (0.75, 12)
    assert (shared.low, shared.high) == (one.low, one.high), "seeds that agree say nothing about further tasks"
    assert shared.low < own.low


def test_a_task_counts_once_where_seeds_have_different_tasks() -> None:
    """A seed that has a part of the tasks, or lost one, tells nothing of others."""
    whole = [1.0, 0.0] * 20
    one, part = mean_ci([whole]), mean_ci([whole, whole[:20], whole[1:]], tasks=[range(40), range(20), range(1, 40)])
    assert (part.low, part.high) == pytest.approx((one.low, one.high), abs=0.02)
    lost = paired_ci([whole, whole, whole[2:]], tasks=[range(40), range(40), range(2, 40)])
    kept = paired_ci([whole])
    assert (lost.low, lost.high) == pytest.approx((kept.low, kept.high), abs=0.02)


def test_a_question_with_more_tasks_weighs_more_in_the_interval_too() -> None:
    """The mean of the questions' means is 1/6, which the mean over tasks, 0.8, is far from."""
    scores, questions = [[1.0] * 20 + [0.0] * 5], [["long"] * 20 + list("abcde")]
    for found in (mean_ci(scores, tasks=questions), paired_ci(scores, tasks=questions)):
        assert found.low + 0.1 < found.mean == 0.8 < found.high - 0.1


def test_seeds_that_agree_keep_the_width_of_their_tasks() -> None:
    perfect = mean_ci([[1.0] * 50] * 3)
    assert (perfect.low, perfect.high) == pytest.approx(wilson(150, 150))
    agreeing = mean_ci([[1.0, 0.0] * 50] * 3)
    assert (agreeing.low, agreeing.high) == pytest.approx(wilson(150, 300))


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    chance = random.Random(0)
    hits = 0
    for _ in range(400):
        seeds = []
        for _ in range(3):
            skill = min(1.0, max(0.0, chance.gauss(0.6, 0.08)))
            seeds.append([float(chance.random() < skill) for _ in range(64)])
        estimate = mean_ci(seeds)
        hits += estimate.low <= 0.6 <= estimate.high
    assert 0.92 <= hits / 400 <= 0.99


@settings(max_examples=50)
@given(seeds=st.lists(scores, min_size=1, max_size=3))
def test_the_mean_lies_in_its_interval(seeds: list[list[float]]) -> None:
    estimate = mean_ci(seeds)
    assert 0 <= estimate.low <= estimate.mean + 1e-9
    assert estimate.mean - 1e-9 <= estimate.high <= 1


def test_pairing_narrows_a_difference() -> None:
    """Tasks differ much and policies little: unpaired, 60 of 100 and 50 of 100 say nothing."""
    first, second = [1.0] * 60 + [0.0] * 40, [1.0] * 50 + [0.0] * 50
    paired = difference_ci([first], [second])
    low, high = independent_difference(mean_ci([first]), mean_ci([second]))
    assert (paired.mean, paired.n) == (pytest.approx(0.1), 100)
    assert (paired.low, paired.high) == pytest.approx(bootstrap([1.0] * 10 + [0.0] * 90), abs=0.03)
    assert low < 0 < paired.low < paired.high < high


def test_differences_that_are_all_equal_keep_a_width() -> None:
    ones, zeros = [1.0] * 20, [0.0] * 20
    found = difference_ci([ones], [zeros])
    assert (found.mean, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(1 - 2**0.5 * wilson(0, 20)[1])
    assert paired_ci([[0.5, 0.5]]) == Estimate(0.5, 0.5, 0.5, 2)


def test_the_interval_of_a_difference_covers_the_truth_about_as_often_as_it_says() -> None:
    chance = random.Random(0)
    hits = 0
    for _ in range(300):
        skills = [chance.random() for _ in range(60)]
        first, second = ([float(chance.random() < skill) for skill in skills] for _ in range(2))
        found = difference_ci([first], [second])
        hits += found.low <= 0 <= found.high
    assert 0.91 <= hits / 300 <= 0.99


def test_independent_differences_match_newcombes_example() -> None:
    """Newcombe 1998, Table II, method 10: 56 of 70 minus 48 of 80."""
    first, second = (Estimate(hits / n, *wilson(hits, n), n) for hits, n in ((56, 70), (48, 80)))
    assert independent_difference(first, second) == pytest.approx((0.0524, 0.3339), abs=1e-4)


@pytest.mark.parametrize("empty", [[], [[]], [[1.0], []]])
def test_a_seed_without_scores_is_an_error(empty: list) -> None:
    with pytest.raises(ValueError, match="at least one score"):
        mean_ci(empty)


@given(rate=st.floats(0.9, 1.0), start=st.floats(0.5, 1.0))
def test_retention_finds_the_rate_it_was_made_from(rate: float, start: float) -> None:
    turns = [2, 8, 32, 64]
    fit = fit_retention(turns, [start * rate**k for k in turns], [64, 64, 32, 16])
    assert fit.per_turn == pytest.approx(rate)
    assert fit.start == pytest.approx(start)
    assert (fit.points, fit.zeros) == (4, 0)
    assert fit.low is not None
    assert fit.high is not None
    assert fit.low <= fit.per_turn + 2e-3
    assert fit.high >= fit.per_turn - 2e-3


def test_retention_leaves_out_zeros_and_counts_them() -> None:
    fit = fit_retention([1, 2, 100], [0.9, 0.81, 0.0], [64, 64, 64])
    assert fit.per_turn == pytest.approx(0.9)
    assert fit.zeros == 1
    lone = fit_retention([1, 2], [0.9, 0.0], [64, 64])
    assert (lone.per_turn, lone.points, lone.zeros) == (None, 1, 1)
    assert fit_retention([3, 3], [0.9, 0.8], [64, 64]).per_turn is None
