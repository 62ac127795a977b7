"""The warm start: its batches follow the seed, and its folder is whole or not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentic.memagent.config import MemAgentRecipe
from agentic.memagent.rollout import SPEC
from agentic.memagent.world import WORLD
from core.config import RecipeError, WarmStartSection
from core.runs.files import read_jsonl
from core.runs.run_folder import StepLog
from core.train.warm_start import run_warm_start

SHORT = WarmStartSection(copy_steps=1, lookup_steps=1, steps=3, batch_size=2)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Any:
    start = WORLD.build_model(tmp_path_factory.mktemp("start") / "model")
    return SPEC.load("tiny", [f"model.path={start}"])


class KilledLog(StepLog):
    """Ends the process, so to speak, when three steps are written."""

    def append(self, record: Any) -> None:
        super().append(record)
        if record["step"] == 3:
            raise KeyboardInterrupt


def run(recipe: MemAgentRecipe, root: Path, log: type[StepLog] = StepLog) -> dict[str, bytes]:
    """The files of the warm-started model."""
    folder = root / "warm_start"
    assert (
        run_warm_start(recipe.model_copy(update={"warm_start": SHORT}), folder, log(root / "metrics.jsonl")) == folder
    )
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def losses(root: Path) -> list[tuple[int, float]]:
    return [(record["step"], record["loss"]) for record in read_jsonl(root / "metrics.jsonl")]


def test_a_stage_that_was_killed_starts_anew_and_a_finished_one_is_left_alone(
    recipe: MemAgentRecipe, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    expected = run(recipe, whole)
    assert expected["model.safetensors"] != (Path(recipe.model.path) / "model.safetensors").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        run(recipe, killed, KilledLog)
    assert not (killed / "warm_start").exists()
    (killed / ".warm_start.partial").mkdir(exist_ok=True)
    (killed / ".warm_start.partial" / "torn.safetensors").write_bytes(b"torn")
    assert run(recipe, killed) == expected
    assert losses(killed) == losses(whole)
    assert [step for step, _ in losses(whole)] == [1, 2, 3, 4, 5]
    assert sorted(path.name for path in killed.iterdir()) == ["metrics.jsonl", "warm_start"]
    assert run(recipe, killed, KilledLog) == expected  # a step would end the test


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
