"""What warm starts share; the stage itself is tested with MemAgent's, in tests/unit/agentic/memagent."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
import torch
from safetensors.torch import load_file

from agentic.memagent.rollout import SPEC
from core.config import RecipeError, WarmStartSection
from core.runs.run_folder import StepLog
from core.train import warm_start as module
from core.train.trainer import TrainingError
from core.train.warm_start import run_warm_start
from core.worlds import World, batch_by_length


def test_like_lengths_come_together_in_random_order_and_none_is_lost():
    rng = Random(0)
    examples = [(tuple(range(rng.randint(1, 50))), (1,)) for _ in range(64)]
    batches = batch_by_length(Random(1), examples, 8)
    assert sorted(len(prompt) for batch in batches for prompt, _ in batch) == sorted(len(p) for p, _ in examples)
    spans = [(min(len(p) for p, _ in batch), max(len(p) for p, _ in batch)) for batch in batches]
    ordered = sorted(spans)
    assert all(ends <= begins for (_, ends), (begins, _) in pairwise(ordered))
    assert spans != ordered
    assert batch_by_length(Random(1), examples, 8) == batches


def test_a_recipe_without_one_starts_from_its_model(tmp_path):
    recipe = SPEC.load("tiny", ["warm_start=null", f"model.path={tmp_path}"])
    assert run_warm_start(recipe, tmp_path / "warm_start", StepLog(tmp_path / "metrics.jsonl")) == tmp_path
    assert not (tmp_path / "warm_start").exists()


def test_a_method_without_one_is_told_how(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_world", lambda method, name: None)
    with pytest.raises(RecipeError, match=r"world of memagent is missing.*`demonstrate`.*warm_start: null"):
        run_warm_start(SPEC.load("tiny"), tmp_path / "warm_start", StepLog(tmp_path / "metrics.jsonl"))


def test_only_the_steps_that_are_asked_for_are_drawn(model, tmp_path, monkeypatch):
    drawn = []

    def demonstrate(rng, recipe, tokenizer):
        for number in range(100):
            drawn.append(number)
            yield [((1, 2), (3, 4))]

    monkeypatch.setattr(module, "find_world", lambda method, name: World(demonstrate=demonstrate, in_order=True))
    recipe = SPEC.load("tiny", [f"model.path={model}", "model.device=cpu", "model.dtype=bfloat16"])
    recipe = recipe.model_copy(update={"warm_start": WarmStartSection(steps=3, batch_size=1)})
    folder = run_warm_start(recipe, tmp_path / "warm_start", StepLog(tmp_path / "metrics.jsonl"))
    assert drawn == [0, 1, 2]
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.float32}


def test_a_warm_start_whose_steps_are_all_skipped_says_so_and_ends(model, tmp_path, monkeypatch):
    world = World(demonstrate=lambda *_: iter([[((1, 2), (3, 4))]] * 9), in_order=True)
    monkeypatch.setattr(module, "find_world", lambda method, name: world)
    recipe = SPEC.load("tiny", [f"model.path={model}", "model.device=cpu"])
    schedule = WarmStartSection(steps=9, batch_size=1, lr=1e30, lr_warmup_steps=0)
    recipe = recipe.model_copy(update={"warm_start": schedule})
    said = []
    with pytest.raises(TrainingError, match=r"warm start, step \d: 3 steps in a row were skipped.*lower the learning"):
        run_warm_start(recipe, tmp_path / "warm_start", StepLog(tmp_path / "metrics.jsonl"), said.append)
    assert any("warning, steps skipped" in line.note for line in said)
    assert not (tmp_path / "warm_start").exists()


def test_frozen_weights_stay_in_the_warm_start_too(model, tmp_path, monkeypatch):
    demonstrate = lambda rng, recipe, tokenizer: iter([[((1, 2), (3, 4))]])  # noqa: E731
    monkeypatch.setattr(module, "find_world", lambda method, name: World(demonstrate=demonstrate, in_order=True))
    recipe = SPEC.load("tiny", [f"model.path={model}", "model.device=cpu", "optimizer.frozen=[layers.0.]"])
    recipe = recipe.model_copy(update={"warm_start": WarmStartSection(steps=1, batch_size=1)})
    folder = run_warm_start(recipe, tmp_path / "warm_start", StepLog(tmp_path / "metrics.jsonl"))
    before, after = (load_file(path / "model.safetensors") for path in (model, folder))
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {name for name in before if "layers.0." in name}


def test_other_settings_of_the_optimizer_are_those_of_rl(model, tmp_path, monkeypatch):
    class Seen(Exception):
        pass

    def look(network, optimizer, **options):
        raise Seen(optimizer)

    world = World(demonstrate=lambda *_: iter([[((1, 2), (3, 4))]]), in_order=True)
    monkeypatch.setattr(module, "find_world", lambda method, name: world)
    monkeypatch.setattr(module, "Trainer", look)
    overrides = ["optimizer.bf16_autocast=false", "optimizer.clip_grad=0.5", "optimizer.beta2=0.9"]
    recipe = SPEC.load("tiny", [f"model.path={model}", "model.device=cpu", *overrides])
    recipe = recipe.model_copy(update={"warm_start": WarmStartSection(steps=1, batch_size=1)})
    with pytest.raises(Seen) as seen:
        run_warm_start(recipe, tmp_path / "warm_start", StepLog(tmp_path / "metrics.jsonl"))
    (used,) = seen.value.args
    assert (used.bf16_autocast, used.clip_grad, used.beta2) == (False, 0.5, 0.9)
    assert (used.lr, used.weight_decay) == (recipe.warm_start.lr, 0.01)
