"""What a method's SPEC loads, and what it refuses."""

from __future__ import annotations

import pytest

from core.config import RecipeError
from core.rollout.method import method_spec


def test_a_method_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(
        RecipeError,
        match=r"no method 'magic'.*coding, compaction, memagent, retool, search_r1, toolorchestra",
    ):
        method_spec("magic")
