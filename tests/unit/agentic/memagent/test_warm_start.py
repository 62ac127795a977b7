"""The warm start: its batches follow the seed, and its folder is whole or not there."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from agentic.memagent.config import MemAgentRecipe, MemAgentWarmStart
from agentic.memagent.rollout import SPEC
from agentic.memagent.tiny import start_model
from agentic.memagent.tiny.warm_start import batches
from core.config import RecipeError
from core.runs.files import read_jsonl
from core.runs.run_folder import StepLog
from core.train.warm_start import run_warm_start

SHORT = MemAgentWarmStart(copy_steps=1, lookup_steps=1, steps=3, batch_size=2)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Any:
    start = start_model.build(tmp_path_factory.mktemp("start") / "model", SHORT.seed)
    return SPEC.load("tiny", [f"model.path={start}"])


def test_batches_follow_the_seed_alone_and_drills_come_first(recipe: MemAgentRecipe, tokenizer: Any) -> None:
    config = MemAgentWarmStart(copy_steps=3, lookup_steps=3, steps=12, batch_size=4)
    drawn = [list(islice(batches(config, recipe, tokenizer), config.total_steps)) for _ in range(2)]
    other = list(islice(batches(config.model_copy(update={"seed": 1}), recipe, tokenizer), config.total_steps))
    assert drawn[0] == drawn[1]
    assert all(ours != theirs for ours, theirs in zip(drawn[0], other, strict=True))
    template = set(tokenizer.all_special_ids)
    for step, batch in enumerate(drawn[0]):
        assert len(batch) == 4
        assert all((prompt == completion) == (step < 3) for prompt, completion in batch)
        assert all(bool(set(prompt) & template) == (step >= 6) for prompt, _ in batch)


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
        (["warm_start.keep=1.5"], r"warm_start\.keep"),
        (["warm_start.steps=0", "warm_start.copy_steps=0", "warm_start.lookup_steps=0"], "warm_start: null"),
    ],
)
def test_a_warm_start_that_makes_no_sense_is_refused_by_name(overrides: list[str], named: str) -> None:
    with pytest.raises(RecipeError, match=named):
        SPEC.load("tiny", overrides)
