"""Group advantages: centred, scaled, blind to failed rollouts."""

from __future__ import annotations

import math
from itertools import combinations
from statistics import pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.algorithms.advantages import credit_turns, group_advantages, keep_most_different, whiten
from core.types import AdvEstimator, Completion, Trajectory, Turn

rewards = st.floats(-100, 100)
groups = st.lists(rewards | st.none(), max_size=12)


@given(groups, st.booleans())
def test_sum_to_zero_and_keep_the_order(group: list[float | None], std_normalization: bool) -> None:
    advantages = group_advantages(group, std_normalization=std_normalization)
    valid = [(r, a) for r, a in zip(group, advantages, strict=True) if r is not None and a is not None]
    assert math.fsum(a for _, a in valid) == pytest.approx(0, abs=1e-6)
    by_reward = [a for _, a in sorted(valid)]
    assert by_reward == sorted(by_reward)


@given(groups, st.booleans())
def test_failed_rollouts_change_nothing_for_the_others(group: list[float | None], std_normalization: bool) -> None:
    advantages = group_advantages(group, std_normalization=std_normalization)
    valid = [r for r in group if r is not None]
    assert [a is None for a in advantages] == [r is None for r in group]
    assert [a for a in advantages if a is not None] == group_advantages(valid, std_normalization=std_normalization)


@given(rewards, st.integers(1, 12), st.booleans())
def test_equal_rewards_give_exactly_zero(reward: float, n: int, std_normalization: bool) -> None:
    assert group_advantages([reward] * n, std_normalization=std_normalization) == [0.0] * n


@given(st.lists(rewards, min_size=2, max_size=12).filter(lambda group: max(group) - min(group) > 0.1))
def test_std_norm_gives_a_sample_std_of_one(group: list[float]) -> None:
    advantages = [a for a in group_advantages(group, std_normalization=True) if a is not None]
    assert math.fsum(a * a for a in advantages) / (len(group) - 1) == pytest.approx(1, rel=1e-3)


@given(groups)
def test_rloo_compares_each_rollout_with_the_others(group: list[float | None]) -> None:
    advantages = group_advantages(group, std_normalization=True, adv_estimator="rloo")
    for place, (reward, advantage) in enumerate(zip(group, advantages, strict=True)):
        others = [r for i, r in enumerate(group) if i != place and r is not None]
        if reward is not None:
            expected = reward - math.fsum(others) / len(others) if others else 0.0
            assert advantage == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.tuples(rewards, st.integers(0, 5)), max_size=8))
def test_whitening_weighs_each_advantage_by_its_tokens(pairs: list[tuple[float, int]]) -> None:
    values = [a for a, _ in pairs]
    apart = [a for a, count in pairs for _ in range(count)]
    white = whiten(values, [count for _, count in pairs])
    again = whiten(apart, [1] * len(apart))
    assert [a for a, (_, n) in zip(white, pairs, strict=True) for _ in range(n)] == pytest.approx(again, abs=1e-6)
    assert whiten(values, [0] * len(values)) == [0.0] * len(values)


@given(groups, st.integers(2, 8))
def test_the_kept_rollouts_have_the_largest_variance_of_all_subsets(group: list[float | None], count: int) -> None:
    """No other subset of that size has a larger variance than some of the highest rewards and some of the lowest."""
    kept = [r for r in keep_most_different(group, count) if r is not None]
    valid = [r for r in group if r is not None]
    assert len(kept) == min(count, len(valid))
    best = max((pvariance(subset) for subset in combinations(valid, len(kept)) if subset), default=0.0)
    assert not kept or pvariance(kept) == pytest.approx(best)


def test_a_step_trains_on_the_kept_rollouts_and_normalises_over_them() -> None:
    kept = keep_most_different([0.0, 1.0, 0.0, None, 0.0, 0.0], 2)
    assert kept == [0.0, 1.0, None, None, None, None]
    assert group_advantages(kept, std_normalization=False)[:3] == [-0.5, 0.5, None]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_reward_that_is_not_finite_is_named(bad: float) -> None:
    with pytest.raises(ValueError, match="reward 1 of the group"):
        group_advantages([0.0, bad], std_normalization=True)


def test_gae_gives_each_turn_what_it_and_later_turns_earned():
    """Rewards .5 and none by turn, 1 at the end, half as much a turn later: .5 + .5 * 1 and 1. No group is compared."""
    done = Completion((3, 4), (0.0, 0.0), "stop")
    turns = (Turn("act", (1,), done, True, reward=0.5), Turn("env", (1,), done, False), Turn("act", (1,), done, True))
    group = [Trajectory("t", turns, reward=1.0), Trajectory("t", turns[2:], reward=0.0)]
    advantages = group_advantages([t.reward for t in group], std_normalization=True, adv_estimator="gae")
    assert advantages == [1.0, 0.0]
    found = credit_turns(group, advantages, "gae", std_normalization=True, turn_coef=1.0, gamma=0.5)
    assert found == [{0: 1.0, 2: 1.0}, {0: 0.0}]


def test_whitened_advantages_that_are_equal_are_exactly_0():
    """A mean over tokens that is rounded would leave 5.6e-13 of these, and Adam would step along them."""
    assert whiten([0.43962] * 7, [298, 289, 280, 246, 35, 137, 113]) == [0.0] * 7
    assert whiten([0.1, 0.1, 9.0], [3, 4, 0])[:2] == [0.0, 0.0], "no token has the third"


@pytest.mark.parametrize(("trained", "estimator"), [(False, "grpo"), (True, "gae")])
def test_an_advantage_that_no_token_would_get_is_refused(trained: bool, estimator: AdvEstimator):
    turn = Turn("act", (1,), Completion((3,), (0.0,), "stop"), trained, advantage=1.0)
    group = [Trajectory("t", (turn,), reward=1.0)]
    with pytest.raises(ValueError, match=r"turn 0 \(act\) has an advantage of its own, and"):
        credit_turns(group, [1.0], estimator, std_normalization=True, turn_coef=1.0, gamma=1.0)
