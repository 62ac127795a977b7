"""Presets: a section that cannot work is refused, and who gets how much of the gradient under `paper` and `seed`."""

from __future__ import annotations

import re
from collections import Counter
from typing import ClassVar

import pytest

from agentic.agentflow.config import AgentFlowRecipe, make_toolbox
from agentic.agentflow.rollout import SPEC
from core.algorithms.aggregate import row_scales
from core.config import RecipeError
from core.rollout.rows import rows_from_groups
from core.tools.base import Arguments
from core.tools.base_generator import BaseGenerator
from core.types import Completion, Row, Trajectory, Turn

GENERATOR = "{path: core.tools.base_generator.BaseGenerator}"
ONLY_GENERATOR = f"agentflow.tools={{base_generator: {GENERATOR}}}"
"""Tools that can be made anywhere: python_coder wants isolation, and search a service."""


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (
            "agentflow.planner.final={role: fixed, trained: true}",
            "planner.final has trained: true and role fixed, which is frozen",
        ),
        ("agentflow.planner.final={max_tokens: 5}", "agentflow.planner.final.role: missing"),
        ("agentflow.roles.executor={role: policy, tokenizer: x}", "leave `tokenizer` out"),
        ("agentflow.roles={executor: {role: a}}", "roles.verifier is missing"),
        ("agentflow.tools={}", "agentflow.tools"),
    ],
)
def test_a_section_that_cannot_work_is_refused(override, problem):
    with pytest.raises(RecipeError, match=re.escape(problem)):
        SPEC.load("seed", [override])


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["agentflow.tools={x: {path: core.tools.nothing.X}}"], "agentflow.tools: tool 'core.tools.nothing.X'"),
        ([f"agentflow.tools.a={GENERATOR[:-1]}, options: {{rolle: b}}}}"], "rolle: Extra inputs"),
        ([f"agentflow.tools.a={GENERATOR[:-1]}, options: {{role: b}}}}"], "agentflow.roles.b is missing"),
        ([f"agentflow.tools.Base-Generator={GENERATOR}"], "two tools have the same name"),
        (
            [f"agentflow.tools.clock={{path: {__name__}.Clock}}", "agentflow.format=fences"],
            "agentflow.format: fences gives a tool a `query` and nothing else; clock: zone: Field required, query:",
        ),
    ],
)
def test_a_tool_that_cannot_be_made_is_refused(overrides, problem):
    with pytest.raises(RecipeError, match=re.escape(problem)):
        make_toolbox(SPEC.load("seed", [ONLY_GENERATOR, *overrides]).agentflow)


class Clock(BaseGenerator):
    class Zone(Arguments):
        zone: str

    arguments: ClassVar[type[Arguments]] = Zone


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
