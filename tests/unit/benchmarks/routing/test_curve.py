"""RouteLLM's measures, by numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.routing.curve import Outcomes, average, average_recovery, call_threshold, measure_router, recover_gap

# Ten prompts: the strong model alone is right on four of them (places 0 to 3), the weak one alone on none.
WEAK = np.array([0, 0, 0, 0, 1, 1, 1, 0, 0, 0], dtype=float)
STRONG = np.array([1, 1, 1, 1, 1, 1, 1, 0, 0, 0], dtype=float)
OUTCOMES = Outcomes(WEAK, STRONG)
BEST_FIRST = np.arange(10, 0, -1, dtype=float)


def test_the_best_router_recovers_the_gap_at_four_calls_in_ten() -> None:
    pgr = recover_gap(BEST_FIRST, OUTCOMES)
    assert pgr.tolist() == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1])
    # Trapezoids of width 0.1: 0.1 * (0 / 2 + 0.25 + 0.5 + 0.75 + 6 * 1 + 1 / 2) = 0.8.
    assert average_recovery(pgr) == pytest.approx(0.8)
    assert call_threshold(pgr, 0.5) == pytest.approx(0.2)
    assert call_threshold(pgr, 0.8) == pytest.approx(0.32)
    assert OUTCOMES.quality(pgr)[[0, 2, 10]].tolist() == pytest.approx([0.3, 0.5, 0.7])


def test_a_prompt_that_strong_loses_takes_recovery_back() -> None:
    outcomes = Outcomes(np.array([0.0, 1.0, 0.0, 0.0]), np.array([1.0, 0.0, 1.0, 1.0]))  # a gap of 2 prompts in 4
    # After each call the recovered gap is 1/2, 0, 1/2, 1. The peak at 0.25 lies between two measured shares.
    pgr = recover_gap(np.array([4.0, 3.0, 2.0, 1.0]), outcomes)
    assert pgr[[2, 3, 5, 7, 8]].tolist() == pytest.approx([0.4, 0.4, 0, 0.4, 0.6])
    assert call_threshold(pgr, 0.5) == pytest.approx(0.75)
    assert call_threshold(pgr, 0.4) == pytest.approx(0.2)


def test_counts_are_copies_of_prompts() -> None:
    counts = np.array([2, 1, 1, 0, 1, 1, 1, 1, 1, 1], dtype=float)
    twice = np.repeat(np.arange(10), counts.astype(int))
    copied = recover_gap(BEST_FIRST[twice], Outcomes(WEAK[twice], STRONG[twice]))
    assert recover_gap(BEST_FIRST, OUTCOMES, counts).tolist() == pytest.approx(copied.tolist())


def test_no_gap_is_an_error() -> None:
    with pytest.raises(ValueError, match="not better"):
        recover_gap(BEST_FIRST, Outcomes(STRONG, WEAK))


def test_intervals_hold_the_value_and_the_mean_over_folds_has_a_narrower_one() -> None:
    rng = np.random.default_rng(1)
    folds = []
    for seed in range(3):
        gain = (rng.random(400) < 0.3).astype(float)
        scores = gain + rng.normal(size=400)
        folds.append(measure_router(scores, Outcomes(np.zeros(400), gain), seed, draws=200))
    for one in folds:
        low, high = one.interval(0)
        assert low < one.values[0] < high
    low, high = average(folds).interval(0)
    assert 0 < high - low < min(one.interval(0)[1] - one.interval(0)[0] for one in folds)
