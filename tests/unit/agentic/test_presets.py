"""Every preset of every method is a recipe, says what it follows, and comes back from the dry run as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from core.config import RecipeError
from core.engine.train import main
from core.rollout.method import method_spec

METHODS = ("memagent", "agentflow", "toolorchestra")
PRESETS = [(method, path.stem) for method in METHODS for path in sorted(method_spec(method).presets.glob("*.yaml"))]


def test_every_method_has_the_three_presets() -> None:
    assert {(method, name) for method in METHODS for name in ("tiny", "seed", "paper")} <= set(PRESETS)


@pytest.mark.parametrize(("method", "name"), PRESETS)
def test_a_preset_says_what_it_follows_and_the_dry_run_prints_it(
    method: str, name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    spec, overrides = method_spec(method), ["optimizer.lr=3e-7", "run.seeds=[1, 2]"]
    recipe = spec.load(name, overrides)
    assert (recipe.method, recipe.preset) == (method, name)
    assert recipe.follows
    assert recipe.departures
    arguments = [part for override in overrides for part in ("--set", override)]
    assert main([method, "--preset", name, "--dry-run", *arguments]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "printed.yaml").write_text(printed)
    assert spec.load(str(tmp_path / "printed.yaml")) == recipe
    assert yaml.safe_load(printed)["optimizer"]["lr"] == 3e-7


@pytest.mark.parametrize("method", METHODS)
def test_a_wrong_key_names_the_right_one(method: str) -> None:
    with pytest.raises(RecipeError, match=r"did you mean warm_start\.steps"):
        method_spec(method).load("tiny", ["warm_start.step=3"])
