"""Who gets how much of the gradient under `paper` and `seed`: advantages per rollout, weights per turn, no row lost."""

from __future__ import annotations

from collections import Counter

import pytest

from agentic.agentflow.config import AgentFlowRecipe
from agentic.agentflow.rollout import SPEC
from core.algorithms.aggregate import row_scales
from core.rollout.rows import rows_from_groups
from core.types import Completion, Row, Trajectory, Turn

RECIPES = {name: SPEC.load(name) for name in ("paper", "seed")}


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
