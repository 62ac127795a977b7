"""The warm start: batches follow the seed and the order that is told; its folder is whole or not there."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from agentic.memagent.config import DrillsAndDemonstrations, MemAgentRecipe, load_recipe
from agentic.memagent.tiny import start_model
from agentic.memagent.tiny import warm_start as drawn
from agentic.memagent.tiny.words import KEYS, VALUES
from core.config import RecipeError
from core.engine.warm_start import run_warm_start
from core.runs.files import read_jsonl
from core.runs.run_folder import StepLog
from core.text.tokenizer import encode_text

SHORT = DrillsAndDemonstrations(copy_steps=1, lookup_steps=1, steps=3, batch_size=2)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> MemAgentRecipe:
    start = start_model.build(tmp_path_factory.mktemp("start") / "model", SHORT.seed)
    return load_recipe("tiny", [f"model.path={start}"])


def batches(config: DrillsAndDemonstrations, recipe: MemAgentRecipe, tokenizer: Any) -> list[Any]:
    """All that the stage takes. The generator may have more: demonstrations come eight batches at a time."""
    total = config.copy_steps + config.lookup_steps + config.steps
    assert config.total_steps == total
    taken = list(islice(drawn.batches(config, recipe, tokenizer), total))
    assert len(taken) == total
    return taken


def test_batches_follow_the_seed_alone(recipe, tokenizer):
    config = DrillsAndDemonstrations(copy_steps=3, lookup_steps=3, steps=12, batch_size=4)
    first = batches(config, recipe, tokenizer)
    assert batches(config, recipe, tokenizer) == first
    other = batches(config.model_copy(update={"seed": 1}), recipe, tokenizer)
    assert all(ours != theirs for ours, theirs in zip(first, other, strict=True))
    assert {len(batch) for batch in first} == {4}


@pytest.mark.parametrize("counts", [(0, 0, 1), (0, 2, 0), (2, 0, 0), (1, 0, 9), (0, 1, 16)])
def test_every_part_may_be_left_out(recipe, tokenizer, counts):
    copies, lookups, steps = counts
    config = DrillsAndDemonstrations(copy_steps=copies, lookup_steps=lookups, steps=steps, batch_size=2)
    batches(config, recipe, tokenizer)


def test_drills_come_before_demonstrations(recipe, tokenizer):
    config = DrillsAndDemonstrations(copy_steps=2, lookup_steps=3, steps=8, batch_size=4)
    taken = batches(config, recipe, tokenizer)
    words = {encode_text(tokenizer, f" {word}")[0] for word in (*KEYS, *VALUES)}
    template = set(tokenizer.all_special_ids)
    for number, batch in enumerate(taken):
        for prompt, completion in batch:
            if number < 2:
                assert prompt == completion
                assert set(prompt) <= words
            elif number < 5:
                assert not set(prompt) & template
                assert set(completion) & words <= words - (set(VALUES) - set(prompt))
            else:
                assert set(prompt) & template
                assert completion[-1] == tokenizer.eos_token_id


def test_sections_grow_over_the_first_third_and_batches_are_of_like_length(recipe, tokenizer):
    config = DrillsAndDemonstrations(copy_steps=0, lookup_steps=0, steps=96, batch_size=8)
    taken = batches(config, recipe, tokenizer)
    longest = [max(len(prompt) for prompt, _ in batch) for batch in taken]
    thirds = [max(longest[i : i + 8]) for i in range(0, 96, 8)]
    assert thirds[0] < 0.7 * min(thirds[4:])
    for start in range(0, 96, 8):
        spans = sorted((min(len(p) for p, _ in b), max(len(p) for p, _ in b)) for b in taken[start : start + 8])
        assert all(ends <= begins for (_, ends), (begins, _) in pairwise(spans))


class KilledLog(StepLog):
    """Ends the process, so to speak, when `last` steps are written."""

    last = 3

    def append(self, record: Any) -> None:
        super().append(record)
        if record["step"] == self.last:
            raise KeyboardInterrupt


def run(recipe: MemAgentRecipe, root: Path, log: type[StepLog] = StepLog) -> Path:
    metrics = log(root / "metrics.jsonl")
    return run_warm_start(recipe.model_copy(update={"warm_start": SHORT}), root / "warm_start", metrics)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def losses(root: Path) -> list[tuple[int, float]]:
    return [(record["step"], record["loss"]) for record in read_jsonl(root / "metrics.jsonl")]


def test_a_stage_that_was_killed_starts_anew_and_ends_the_same(recipe, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    expected = contents(run(recipe, whole))
    with pytest.raises(KeyboardInterrupt):
        run(recipe, killed, KilledLog)
    assert not (killed / "warm_start").exists()
    (killed / ".warm_start.partial").mkdir(exist_ok=True)
    (killed / ".warm_start.partial" / "torn.safetensors").write_bytes(b"torn")
    folder = run(recipe, killed)
    assert folder == killed / "warm_start"
    assert contents(folder) == expected
    assert [step for step, _ in losses(whole)] == [1, 2, 3, 4, 5]
    assert losses(killed) == losses(whole)
    assert sorted(path.name for path in killed.iterdir()) == ["metrics.jsonl", "warm_start"]


def test_a_finished_stage_is_left_alone(recipe, tmp_path):
    before = contents(run(recipe, tmp_path))
    logged = losses(tmp_path)
    run(recipe, tmp_path, KilledLog)  # would end the test if it took a step
    assert contents(tmp_path / "warm_start") == before
    assert losses(tmp_path) == logged


def test_the_stage_trains_the_start_model(recipe, tmp_path):
    after = contents(run(recipe, tmp_path))
    before = contents(Path(recipe.model.path))
    assert after["model.safetensors"] != before["model.safetensors"]
    assert after["tokenizer.json"] == before["tokenizer.json"]


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["warm_start.steps=-1"], r"warm_start\.steps"),
        (["warm_start.copy_steps=-1"], r"warm_start\.copy_steps"),
        (["warm_start.batch_size=0"], r"warm_start\.batch_size"),
        (["warm_start.forget=1.5"], r"warm_start\.forget"),
        (["warm_start.distract=-0.1"], r"warm_start\.distract"),
        (["warm_start.lr=-1"], r"warm_start\.lr"),
        (["warm_start.steps=0", "warm_start.copy_steps=0", "warm_start.lookup_steps=0"], "warm_start: null"),
    ],
)
def test_a_warm_start_that_makes_no_sense_is_refused_by_name(overrides, named):
    with pytest.raises(RecipeError, match=named):
        load_recipe("tiny", overrides)


def test_a_warm_start_can_be_left_out():
    assert load_recipe("tiny", ["warm_start=null"]).warm_start is None
