"""The comparison of variants by what users care for: one group per task, made of one rollout of each variant."""

from __future__ import annotations

from typing import Any

import pytest

from agentic.toolorchestra.world import CHEAP, OWN, PREFERENCES, SEARCH, STRONG, compare_variants
from core.runs.evaluation import EvalResult

ALIASES = (SEARCH, STRONG, OWN, CHEAP)


def variant(
    name: str, *rollouts: tuple[float, float, float, tuple[str, ...]] | None, preference: str = "cheap"
) -> EvalResult:
    """Rollouts as (correct, cost, latency, calls); None failed."""
    measures: dict[str, Any] = {
        key: [None if r is None else r[i] for r in rollouts] for i, key in enumerate(("correct", "cost", "latency"))
    }
    for alias in ALIASES:
        measures[f"calls_{alias}"] = [None if r is None else float(r[3].count(alias)) for r in rollouts]
    n = len(rollouts)
    return EvalResult(
        variant=name, data="test", length=0, seed=0, n=n,
        scores={"official": [0.0 if r is None else r[0] for r in rollouts]},
        turns=[1] * n, document_tokens=[0] * n, seconds=1.0, measures=measures,
        labels={"kind": ["fact"] * n, "preference": [preference] * n}, notes={"task_ids": [f"t{i}" for i in range(n)]},
    )  # fmt: skip


def rewards(*variants: EvalResult) -> list[Any]:
    return [result.measures["preference_reward"] for result in compare_variants(variants)]


def test_cheap_and_right_gets_all_dear_and_right_the_weight_of_being_right_wrong_nothing():
    cheap, dear, wrong = (1.0, 2.0, 7.0, (SEARCH, CHEAP)), (1.0, 10.0, 12.0, (STRONG,)), (0.0, 1.0, 4.0, (CHEAP,))
    right = PREFERENCES["cheap"].weights["accuracy"]
    expected = [(right + 8 / 9) / (right + 1), right / (right + 1), 0.0]
    found = rewards(variant("trained", cheap), variant("most-expensive", dear), variant("no-search", wrong))
    assert found == [[pytest.approx(each)] for each in expected]


def test_a_failed_rollout_has_no_reward_and_is_in_no_group():
    alone, failed = rewards(variant("a", (1.0, 2.0, 7.0, (SEARCH, CHEAP))), variant("b", None))
    assert alone == [0.0]  # nothing to compare with
    assert failed == [None]


def test_the_best_route_is_its_calls_no_more_and_no_less():
    routes = {"right": (SEARCH, CHEAP), "more": (SEARCH, SEARCH, CHEAP), "other": (SEARCH, OWN)}
    found = compare_variants([variant(name, (1.0, 2.0, 7.0, calls)) for name, calls in routes.items()])
    assert [result.measures["best_route"] for result in found] == [[1.0], [0.0], [0.0]]
