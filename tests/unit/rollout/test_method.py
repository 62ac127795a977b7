"""What a method's SPEC loads, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.config import RecipeError
from core.rollout.method import method_spec


def test_a_preset_of_another_method_is_refused_by_name(tmp_path: Path) -> None:
    """The slip of whoever copies a method's folder: slime would be given the other one's hooks."""
    spec = method_spec("memagent")
    copied = tmp_path / "mine.yaml"
    copied.write_text((spec.presets / "tiny.yaml").read_text().replace("method: memagent", "method: yours"))
    with pytest.raises(RecipeError, match=r"mine\.yaml: method is 'yours', and this is 'memagent'"):
        spec.load(str(copied))
    with pytest.raises(RecipeError, match="method is 'agentflow', and this is 'memagent'; run agentflow"):
        spec.load(str(method_spec("agentflow").presets / "tiny.yaml"))
    assert spec.load("tiny", ["run.steps=3"]).run.steps == 3


def test_a_method_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(
        RecipeError,
        match=r"no method 'magic'.*coding, compaction, memagent, retool, search_r1, toolorchestra",
    ):
        method_spec("magic")
