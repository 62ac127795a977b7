"""Who gets how much of the gradient under `paper` and `seed`: advantages per rollout, weights per turn, no row lost."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.agentflow.config import AgentFlowRecipe, load_recipe
from core.algorithms.advantages import group_advantages
from core.algorithms.aggregate import row_scales
from core.rollout.rows import rows_from_groups
from core.types import Completion, Row, Trajectory, Turn

RECIPES = {name: load_recipe(name) for name in ("paper", "seed")}


def trajectory(recipe: AgentFlowRecipe, reward: float | None, steps: int, tokens: int) -> Trajectory:
    """One as the method records it: plan, then next step, executor and verifier `steps` times, then the answer."""
    trained = {role: section.trained for role, section in recipe.agentflow.every_role()}
    roles = ["planner.plan", *["planner.next_step", "executor", "verifier"] * steps, "planner.final"]
    turns = tuple(
        Turn(role, (1, 2), Completion((3,) * (tokens + place), (0.0,) * (tokens + place), "stop"), trained[role])
        for place, role in enumerate(roles)
    )
    return Trajectory("t", turns, "failed" if reward is None else "completed", reward)


def rows_of(recipe: AgentFlowRecipe, group: list[Trajectory]) -> tuple[list[Row], list[float]]:
    """The rows of one group, and the weight of each in the loss (that of its tokens together)."""
    algorithm = recipe.algorithm
    rows = rows_from_groups(
        [group], std_normalization=algorithm.std_normalization, split_advantage=algorithm.split_advantage
    )
    scales = row_scales(rows, algorithm.loss_agg)
    return rows, [scale * row.trained_tokens for scale, row in zip(scales, rows, strict=True)]


@pytest.mark.parametrize("name", RECIPES)
def test_two_short_successes_among_eight(name):
    """R = [1, 1, 0 x 6], T = [1, 1, 3 x 6]: +1.62 and -0.54. Statistics over turns would give +2.92 and -0.33."""
    recipe = RECIPES[name]
    rewards, steps = [1.0] * 2 + [0.0] * 6, [1] * 2 + [3] * 6
    rows, weights = rows_of(recipe, [trajectory(recipe, r, t, 5) for r, t in zip(rewards, steps, strict=True)])
    for row in rows:
        assert row.advantage == pytest.approx(1.6202 if row.rollout_id < 2 else -0.5401, abs=1e-4)
    per_rollout = Counter(row.rollout_id for row in rows)
    if name == "paper":  # next steps alone, each 1/(G T)
        assert [per_rollout[i] for i in range(8)] == steps
        assert weights == pytest.approx([1 / (8 * steps[row.rollout_id]) for row in rows])
    else:  # the plan too; every turn alike, so that a longer rollout weighs more
        assert [per_rollout[i] for i in range(8)] == [t + 1 for t in steps]
        assert weights == pytest.approx([1 / (2 * 2 + 6 * 4)] * len(rows))


groups = st.lists(
    st.tuples(st.one_of(st.none(), st.sampled_from([0.0, 1.0])), st.integers(1, 10), st.integers(1, 30)),
    min_size=2,
    max_size=10,
).filter(lambda members: any(reward is not None for reward, _, _ in members))


@pytest.mark.parametrize("name", RECIPES)
@settings(max_examples=60, deadline=None)
@given(members=groups)
def test_credit_does_not_depend_on_how_long_rollouts_are(name, members):
    recipe = RECIPES[name]
    rows, weights = rows_of(recipe, [trajectory(recipe, *member) for member in members])
    advantages = group_advantages([reward for reward, _, _ in members], std_normalization=True)
    turns = {
        i: steps + (name == "seed") for i, (reward, steps, _) in enumerate(members) if reward is not None
    }  # fmt: skip
    assert Counter(row.rollout_id for row in rows) == turns  # every trained turn of a valid rollout is a row
    weight: dict[int, list[float]] = defaultdict(list)
    for row, share in zip(rows, weights, strict=True):
        assert row.advantage == advantages[row.rollout_id]
        assert all(row.loss_mask)
        weight[row.rollout_id].append(share)
    for i, shares in weight.items():
        if name == "paper":
            assert shares == pytest.approx([1 / (len(turns) * turns[i])] * turns[i])
        else:
            assert shares == pytest.approx([1 / sum(turns.values())] * turns[i])
    assert sum(weights) == pytest.approx(1.0)
