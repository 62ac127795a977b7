"""Every shipped preset: it loads, names its source, and its dump loads again to the same recipe."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from core.rollout.method import method_spec
from core.train.command import main

AGENTIC = Path(__file__).resolve().parents[2] / "agentic"
PRESETS = sorted((path.parents[1].name, path.stem) for path in AGENTIC.glob("*/presets/*.yaml"))
CLUSTER = [name for name in PRESETS if "\nslime:\n" in AGENTIC.joinpath(name[0], f"presets/{name[1]}.yaml").read_text()]
"""Presets for slime, which verl takes without its section."""
METHODS = sorted(path.parent.name for path in AGENTIC.glob("*/rollout.py"))
PAPERS = {path.parents[1].name for path in AGENTIC.glob("*/presets/*.yaml") if "\nfollows: paper\n" in path.read_text()}
"""The methods of which a preset follows a paper."""


@pytest.mark.parametrize("method", METHODS)
def test_a_method_has_a_tiny_preset_and_that_of_its_paper(method: str) -> None:
    required = {"tiny", "paper"} if method in PAPERS else {"tiny"}
    missing = required - {preset for name, preset in PRESETS if name == method}
    assert not missing, (
        f"agentic/{method}/presets lacks {', '.join(sorted(missing))}.yaml; without a paper, write `follows: ours`"
    )


@pytest.mark.parametrize(("method", "preset"), PRESETS)
def test_a_dry_run_prints_a_recipe_that_loads_as_the_same(
    method: str, preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ["optimizer.lr=3e-7", "run.seeds=[1, 2]"]
    recipe = method_spec(method).load(preset, overrides)
    assert (recipe.method, recipe.preset) == (method, preset)
    assert recipe.follows, f"agentic/{method}/presets/{preset}.yaml: name in `follows` the source, or write ours"
    # Those of an evaluation are computed.
    assert recipe.departures or preset == "published", (
        f"agentic/{method}/presets/{preset}.yaml: `departures` is empty; write a line for each thing that differs from "
        f"{recipe.follows!r}, or from what you would do with more than this machine, such as the model"
    )
    arguments = [word for override in overrides for word in ("--set", override)]
    assert main([method, "--preset", preset, "--dry-run", *arguments]) == 0
    path = tmp_path / "printed.yaml"
    path.write_text(capsys.readouterr().out)
    assert method_spec(method).load(str(path)) == recipe


@pytest.mark.parametrize("method", [method for method, preset in PRESETS if preset == "paper"])
def test_every_number_of_the_paper_has_its_source(method: str) -> None:
    """On the numbers that say how to train; prices and addresses have one comment for all of them."""
    text = (AGENTIC / method / "presets" / "paper.yaml").read_text()
    sections = re.findall(r"^(rollout|algorithm|optimizer|run):\n((?:  .*\n)+)", text, re.MULTILINE)
    assert len(sections) == 4, (
        f"agentic/{method}/presets/paper.yaml: one of rollout, algorithm, optimizer, run is missing"
    )
    lines = [line for _, body in sections for line in body.splitlines()]
    bare = [line for line in lines if re.search(r": [\d.-]", line) and "#" not in line]
    assert not bare, f"agentic/{method}/presets/paper.yaml: write `# source` behind each number"
