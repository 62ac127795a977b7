"""pass^k and its averages, against hand computations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.harness.samples import Sample
from benchmarks.tau2.results import tau2_result, tau2_statistics
from core.report.stats import wilson
from tests.unit.benchmarks.conftest import CELL, make_sample


def trial(
    name: str, number: int, solved: bool, end: str = "user_stop", judged: bool = True, **metrics: float
) -> Sample:
    simulation = {"termination_reason": end, "info": {"assertions_not_judged": not judged}}
    graded = {"score": float(solved), "simulation": simulation}
    return make_sample(name, number, graded=graded, metrics=metrics)


def trials(counts: list[int], n: int = 4) -> list[Sample]:
    return [trial(f"task{i}", t, t < c) for i, c in enumerate(counts) for t in range(n)]


def test_by_domain_micro_and_macro() -> None:
    stats = tau2_statistics({"retail": trials([4, 2, 0, 4]), "airline": trials([2, 2])})
    one, two = stats.pass_hat[1], stats.pass_hat[2]
    assert (one["retail"].mean, one["airline"].mean) == (0.625, 0.5)
    assert one["micro"].mean == pytest.approx((4 * 0.625 + 2 * 0.5) / 6)
    assert one["macro"].mean == pytest.approx((0.625 + 0.5) / 2)
    assert two["retail"].mean == pytest.approx((1 + 1 / 6 + 0 + 1) / 4)
    assert stats.pass_hat[4]["airline"].mean == 0
    assert one["micro"].low <= one["micro"].mean <= one["micro"].high
    assert (one["airline"].low, one["airline"].high) == pytest.approx(wilson(1, 2)), "scores that are all equal"
    assert (stats.trials, stats.tasks) == (4, {"retail": 4, "airline": 2})


def test_a_failure_counts_as_not_solved_and_is_counted_and_leaves_cost_and_calls() -> None:
    failed = make_sample("b", 0, status="failed", failure="deadline", graded={"score": None, "simulation": None})
    made = [
        trial("a", 0, True, cost=0.5, **{"calls_expert-1": 2, "calls_expert-2": 1}),
        failed,
        trial("c", 0, False, "max_steps", judged=False, cost=0.1, **{"calls_expert-1": 0}),
    ]
    stats = tau2_statistics({"retail": made})
    assert stats.pass_hat[1]["micro"].mean == pytest.approx(1 / 3)
    assert stats.errors == {"deadline": 1}
    assert stats.terminations == {"user_stop": 1, "infrastructure_error": 1, "max_steps": 1}
    assert (stats.cost, stats.calls) == (pytest.approx(0.3), {"expert-1": 1.0, "expert-2": 0.5})
    assert (stats.histogram, stats.not_judged) == ({0: 1, 3: 1}, 1)


def test_a_failed_trial_has_the_score_0_and_no_known_cost() -> None:
    lost = {"status": "failed", "failure": "deadline", "turns": 0, "graded": {"score": None, "simulation": None}}
    samples = [
        [trial("a", 0, True, cost=0.5), make_sample("a", 1, **lost)],
        [make_sample("b", 0, **lost), make_sample("b", 1, **lost)],
    ]
    result = tau2_result(replace(CELL, data="tau2-retail"), samples)
    assert result.scores["official"] == [0.5, 0.0]
    assert (result.measures["cost"], result.measures["turns"]) == ([0.5, None], [1.0, None])
