"""The warm start: its batches follow the seed, and its folder is whole or not there."""

from __future__ import annotations

import pytest

from agentic.memagent.rollout import SPEC
from core.config import RecipeError


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["warm_start.copy_steps=-1"], r"warm_start\.copy_steps"),
        (["warm_start.steps=0", "warm_start.copy_steps=0", "warm_start.lookup_steps=0"], "warm_start: null"),
    ],
)
def test_a_warm_start_that_makes_no_sense_is_refused_by_name(overrides: list[str], named: str) -> None:
    with pytest.raises(RecipeError, match=named):
        SPEC.load("tiny", overrides)
