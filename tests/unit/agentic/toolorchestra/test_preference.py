"""The preference reward, by hand from eq. 1-3 of the paper (arXiv 2511.21689)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.toolorchestra.reward import make_features, preference_rewards


def rollout(correct: bool = True, cost: float = 0.0, latency: float = 0.0, **calls: int) -> dict[str, float]:
    return make_features(correct=correct, cost=cost, latency=latency, calls=calls)


# Name -> (rollouts, preference vector, rewards worked out by hand).
GROUPS: Mapping[str, tuple[Sequence[Mapping[str, float]], Mapping[str, float], Sequence[float]]] = {
    # (-.05 + .10) / (.10 - .01) = .05/.09
    "cost .01 .05 .10": (
        [rollout(cost=0.01), rollout(cost=0.05), rollout(cost=0.10)], {"cost": 1.0}, [1.0, 5 / 9, 0.0],
    ),
    # accuracy: 1 or 0 of 0..1; the wrong one gets 0 although it is the cheapest
    "wrong is 0": (
        [rollout(cost=0.2), rollout(False, cost=0.0), rollout(cost=0.1)],
        {"accuracy": 1.0, "cost": 0.5},
        [1.0, 0.0, 1.25],
    ),
    # all right: accuracy is constant, so it is 0 and only cost tells them apart
    "constant accuracy": ([rollout(cost=1.0), rollout(cost=3.0)], {"accuracy": 1.0, "cost": 1.0}, [1.0, 0.0]),
    "all equal": ([rollout(cost=1.0, web=2)] * 3, {"accuracy": 1.0, "cost": 1.0, "web": 1.0}, [0.0, 0.0, 0.0]),
    "alone": ([rollout(cost=1.0)], {"accuracy": 1.0, "cost": 1.0}, [0.0]),
    # counts of local: 0, 1, 4 -> 0, 1/4, 1; a rollout that never used it counts as 0 calls
    "zero counts": ([rollout(), rollout(local=1), rollout(local=4)], {"local": 1.0}, [0.0, 0.25, 1.0]),
    # paper's example "avoid API calls": web, local, two open models liked by weight; hosted models and metrics not
    "avoid hosted models": (
        [rollout(local=2, qwen=1), rollout(local=1, llama=1, o3=1), rollout(web=1, o3=2)],
        {"local": 1.0, "qwen": 1.0, "llama": 1.0, "o3": 0.0, "accuracy": 0.0, "cost": 0.0},
        [1.0 + 1.0, 0.5 + 1.0, 0.0],
    ),
    # cost: -.3 -.1 -.2 -> 0, 1, 1/2; latency: -4 -8 -6 -> 1, 0, 1/2; answer-1: 1 0 1; accuracy constant
    "all at once": (
        [
            rollout(cost=0.3, latency=4, **{"answer-1": 1}),
            rollout(cost=0.1, latency=8, **{"answer-2": 1}),
            rollout(cost=0.2, latency=6, **{"answer-1": 1}),
        ],
        {"accuracy": 1.0, "cost": 0.4, "latency": 0.2, "answer-1": 0.1},
        [0.2 + 0.1, 0.4, 0.2 + 0.1 + 0.1],
    ),
    # a wrong rollout still sets the scale: costs 0, .5, 1 -> 1, 1/2, 0
    "wrong ones set the scale": (
        [rollout(False, cost=0.0), rollout(cost=0.5), rollout(cost=1.0)], {"cost": 1.0}, [0.0, 0.5, 0.0],
    ),
    "weight of an unknown feature": ([rollout(cost=1), rollout(cost=2)], {"cost": 1.0, "gpt-7": 1.0}, [1.0, 0.0]),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
def test_by_hand(name: str) -> None:
    group, weights, expected = GROUPS[name]
    assert preference_rewards(group, weights) == pytest.approx(expected)


AMOUNT = st.floats(0, 1e6)
ROLLOUTS = st.builds(rollout, st.booleans(), AMOUNT, AMOUNT, web=st.integers(0, 9), local=st.integers(0, 9))
WEIGHT = st.floats(0, 1)
WEIGHTS = st.fixed_dictionaries(dict.fromkeys(("accuracy", "cost", "latency", "web", "local"), WEIGHT))


@given(st.lists(ROLLOUTS, max_size=6), ROLLOUTS, AMOUNT, WEIGHTS)
def test_of_two_right_rollouts_the_cheaper_never_gets_less(
    others: list[dict[str, float]], base: dict[str, float], saved: float, weights: dict[str, float]
) -> None:
    dear = {**base, "accuracy": 1.0}
    cheap = {**dear, "cost": dear["cost"] + saved}
    rewards = preference_rewards([*others, dear, cheap], weights)
    assert rewards[-1] >= rewards[-2]


@given(st.lists(ROLLOUTS, min_size=1, max_size=6), WEIGHTS)
def test_rewards_are_bounded_and_wrong_is_0(group: list[dict[str, float]], weights: dict[str, float]) -> None:
    for one, reward in zip(group, preference_rewards(group, weights), strict=True):
        assert 0 <= reward <= sum(weights.values()) + 1e-9
        assert one["accuracy"] or reward == 0
