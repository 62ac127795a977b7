"""What warm starts share; the stage itself is tested with MemAgent's, in tests/unit/agentic/memagent."""

from __future__ import annotations

from itertools import chain, islice, pairwise
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file

from agentic.memagent.rollout import SPEC
from core.config import RecipeError, WarmStartSection
from core.runs.files import read_jsonl
from core.runs.run_folder import StepLog
from core.train import warm_start as module
from core.train.trainer import TrainingError
from core.train.warm_start import run_warm_start
from core.worlds import World, cut_batches


def test_like_lengths_come_together_in_random_order_and_none_is_lost():
    rng = Random(0)
    examples = [(tuple(range(rng.randint(1, 50))), (1,)) for _ in range(64)]
    batches = cut_batches(Random(1), examples, 8)
    assert sorted(len(prompt) for batch in batches for prompt, _ in batch) == sorted(len(p) for p, _ in examples)
    spans = [(min(len(p) for p, _ in batch), max(len(p) for p, _ in batch)) for batch in batches]
    ordered = sorted(spans)
    assert all(ends <= begins for (_, ends), (begins, _) in pairwise(ordered))
    assert spans != ordered
    assert cut_batches(Random(1), examples, 8) == batches


def test_in_order_the_supervised_baseline_sees_whole_tasks_from_all_over_the_file(tmp_path):
    """By length, a batch would hold first turns alone, or last ones."""
    train = tmp_path / "train.jsonl"
    train.write_text("".join(f'{{"id": "{n}", "question": "Who?", "answers": ["me"]}}\n' for n in range(40)))
    recipe = SPEC.load("tiny", [f"data.train={train}"])
    config = recipe.supervised.model_copy(update={"batch_size": 8})

    def solve(rng, recipe, tokenizer, tasks):
        return [turn for task in tasks for turn in (((int(task.task_id),), (0,)), ((int(task.task_id),) * 9, (1,)))]

    epoch = list(islice(World(solve=solve, in_order=True).draw_solutions(config, recipe, None), 10))
    assert all([completion for _, completion in batch] == [(0,), (1,)] * 4 for batch in epoch)
    tasks = [[prompt[0] for prompt, _ in batch[::2]] for batch in epoch]
    assert sorted(chain(*tasks)) == list(range(40))
    assert all(max(of_batch) - min(of_batch) > 4 for of_batch in tasks), "not as the file has them"


def test_a_recipe_without_one_starts_from_its_model(tmp_path):
    recipe = SPEC.load("tiny", ["warm_start=null", f"model.path={tmp_path}"])
    assert run_warm_start(recipe, tmp_path / "warm_start", StepLog(tmp_path / "metrics.jsonl")) == tmp_path
    assert not (tmp_path / "warm_start").exists()


def test_a_method_without_one_is_told_how(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_world", lambda method, name: None)
    with pytest.raises(RecipeError, match=r"world of memagent is missing.*`demonstrate`.*warm_start: null"):
        run_warm_start(SPEC.load("tiny"), tmp_path / "warm_start", StepLog(tmp_path / "metrics.jsonl"))


EXAMPLES = [((1, 2), (3, 4))]


def run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    demonstrate: Any,
    section: WarmStartSection,
    *settings: str,
    **show: Any,
) -> Path:
    """Warm-start the tiny MemAgent on batches that come in order."""
    monkeypatch.setattr(module, "find_world", lambda method, name: World(demonstrate=demonstrate, in_order=True))
    recipe = SPEC.load("tiny", ["model.device=cpu", *settings]).model_copy(update={"warm_start": section})
    return run_warm_start(recipe, folder / "warm_start", StepLog(folder / "metrics.jsonl"), **show)


def test_only_the_steps_that_are_asked_for_are_drawn(model, tmp_path, monkeypatch):
    drawn = []

    def demonstrate(rng, recipe, tokenizer):
        for number in range(100):
            drawn.append(number)
            yield EXAMPLES

    section = WarmStartSection(steps=3, batch_size=1)
    folder = run(tmp_path, monkeypatch, demonstrate, section, f"model.path={model}", "model.dtype=bfloat16")
    assert drawn == [0, 1, 2]
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.float32}


def test_a_world_that_runs_out_of_examples_is_told(model, tmp_path, monkeypatch):
    def demonstrate(rng, recipe, tokenizer):
        yield from [EXAMPLES] * 2

    with pytest.raises(TrainingError, match="its examples end after 2 of 3 batches"):
        run(tmp_path, monkeypatch, demonstrate, WarmStartSection(steps=3, batch_size=1), f"model.path={model}")
    assert not (tmp_path / "warm_start").exists()


@pytest.mark.parametrize(("warmup", "told"), [(3, False), (4, True)])
def test_a_rate_that_ends_before_it_has_risen_is_told(model, tmp_path, monkeypatch, warmup, told):
    """As of rejection sampling, whose steps follow from how many rollouts were right."""
    section, said = WarmStartSection(steps=3, batch_size=1, lr_warmup_steps=warmup), []
    run(tmp_path, monkeypatch, lambda *_: iter([EXAMPLES] * 3), section, f"model.path={model}", show=said.append)
    assert any(line.note.startswith(f"lr_warmup_steps is {warmup}, and there are 3 steps") for line in said) == told


def test_a_warm_start_whose_steps_are_all_skipped_says_so_and_ends(model, tmp_path, monkeypatch):
    section = WarmStartSection(steps=9, batch_size=1, lr=1e30, lr_warmup_steps=0)
    said = []
    with pytest.raises(TrainingError, match=r"warm start, step \d: 3 steps in a row were skipped.*lower the learning"):
        run(tmp_path, monkeypatch, lambda *_: iter([EXAMPLES] * 9), section, f"model.path={model}", show=said.append)
    assert any("warning, steps skipped" in line.note for line in said)
    assert not (tmp_path / "warm_start").exists()


def test_a_batch_without_a_token_is_not_repeated_by_a_run_that_goes_on(model, tmp_path, monkeypatch):
    batches = [[((1, 2), (token,) if token else ())] for token in (3, 0, 4, 5)]
    section, setting = WarmStartSection(steps=4, batch_size=1, lr_warmup_steps=0), f"model.path={model}"
    whole = run(tmp_path / "whole", monkeypatch, lambda *_: iter(batches), section, setting)
    monkeypatch.setattr(module, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(module, "SAVE_SHARE", 1e9)

    def die(*_):
        yield from batches[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", monkeypatch, die, section, setting)
    resumed = run(tmp_path / "killed", monkeypatch, lambda *_: iter(batches), section, setting)
    losses = [[one["loss"] for one in read_jsonl(path.parent / "metrics.jsonl")] for path in (whole, resumed)]
    assert losses[0] == losses[1]
    ours, theirs = (load_file(path / "model.safetensors") for path in (resumed, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_frozen_weights_stay_in_the_warm_start_too(model, tmp_path, monkeypatch):
    settings = f"model.path={model}", "optimizer.frozen=[layers.0.]"
    folder = run(tmp_path, monkeypatch, lambda *_: iter([EXAMPLES]), WarmStartSection(steps=1, batch_size=1), *settings)
    before, after = (load_file(path / "model.safetensors") for path in (model, folder))
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {name for name in before if "layers.0." in name}


def test_other_settings_of_the_optimizer_are_those_of_rl(model, tmp_path, monkeypatch):
    made = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(module, "Trainer", made)
    settings = f"model.path={model}", "optimizer.bf16_autocast=false", "optimizer.clip_grad=0.5", "optimizer.beta2=0.9"
    section = WarmStartSection(steps=1, batch_size=1)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, monkeypatch, lambda *_: iter([EXAMPLES]), section, *settings)
    _, used = made.call_args.args
    assert (used.bf16_autocast, used.clip_grad, used.beta2) == (False, 0.5, 0.9)
    assert (used.lr, used.weight_decay) == (section.lr, 0.01)
