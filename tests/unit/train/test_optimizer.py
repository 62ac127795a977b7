"""AdamW with 8-bit moments: as exact as the plan says, close to AdamW, and resumed bit for bit."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from core.config import OptimizerSection, RecipeError
from core.engine import weights
from core.train import checkpoint, optimizer
from core.train.memory import plan_memory
from core.train.optimizer import AdamW8bit, make_optimizer, moment_bytes
from core.train.trainer import Trainer
from core.types import Row
from tests import kit
from tests.unit.train.test_memory import count_bytes, make_recipe, size_of
from tests.unit.train.test_trainer import same, snapshot

TORCHAO = "needs torchao: pip install torchao==0.18.0"
SECTION = OptimizerSection(name="adamw8bit", lr=3e-3, weight_decay=0.1)
EXAMPLES = [((1, 2, 3), (4, 5, 6)), ((9, 8), (7, 6, 5, 4)), ((30,) * 20, (31, 32))]
SIZES = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
"""Gives both kinds of weights: queries and the MLP get 8-bit moments; keys, values, norms and biases are too small."""


def needs_torchao(test):
    for mark in (
        pytest.mark.optional,
        pytest.mark.skipif(find_spec("torchao") is None, reason=TORCHAO),
        pytest.mark.timeout(900),  # the import alone takes most of a minute on busy cores
    ):
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.save_model(tmp_path_factory.mktemp("model"), 0, **SIZES)


def make_trainer(folder: Path, dtype: str = "bfloat16", seed: int = 0, section: OptimizerSection = SECTION) -> Trainer:
    return Trainer(weights.load(folder, dtype, "cpu"), section, seed=seed)


def test_a_missing_package_is_named_with_its_command(qwen2, monkeypatch):
    monkeypatch.setattr(optimizer, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"adamw8bit needs a package: pip install torchao==0\.18\.0$"):
        Trainer(weights.load(qwen2), SECTION)


def test_eight_bits_are_a_quarter_of_float32():
    size = 3584 * 18944
    whole = moment_bytes(OptimizerSection(lr=1.0), size)
    assert whole == 8 * size
    assert moment_bytes(SECTION, size) / whole == pytest.approx(1 / 4 + 1 / 256, rel=1e-3)
    assert moment_bytes(SECTION, 3584) == moment_bytes(OptimizerSection(lr=1.0), 3584)


@needs_torchao
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_plan_of_8_bit_moments_is_exact(folder, dtype):
    recipe = make_recipe(folder, f"model.dtype={dtype}", "optimizer.name=adamw8bit")
    trainer = make_trainer(folder, dtype, section=recipe.optimizer)
    plan = plan_memory(recipe, trainer.model.config, "cpu")
    gradients: list[torch.Tensor] = []
    step = trainer.optimizer.step
    trainer.optimizer.step = lambda: (gradients.extend(w.grad for w in trainer._optimized), step())  # type: ignore
    trainer.grpo_step([Row(tuple(range(12)), (1,) * 4, (-1.0,) * 4, 1.0, rollout_id=0)])
    moments = [
        state[name] for state in trainer.optimizer._optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")
    ]
    kept = [part for m in moments for part in ((m.codes, m.scale, m.qmap) if hasattr(m, "codes") else (m,))]
    assert sum(part.dtype == torch.uint8 for part in kept) == 2 * 7  # embedding, head, q, o, gate, up, down
    assert {m.dtype for m in moments if not hasattr(m, "codes")} == {torch.float32}
    assert size_of(plan, "moments") == count_bytes(kept)
    copies = [copy for copy, _ in trainer._copies]
    assert size_of(plan, "float32 copies") == count_bytes(copies)
    assert max((copy.numel() for copy in copies), default=0) < 4096
    assert size_of(plan, "gradients", "update") == count_bytes(gradients)


@needs_torchao
def test_the_loss_falls_as_with_adamw(folder):
    losses = {}
    for name in ("adamw", "adamw8bit"):
        trainer = make_trainer(folder, section=SECTION.model_copy(update={"name": name, "max_tokens_per_pack": 32}))
        losses[name] = [trainer.supervised_step(EXAMPLES)["loss"] for _ in range(20)]
    assert losses["adamw8bit"][0] == losses["adamw"][0] > 3.0
    assert losses["adamw8bit"][-1] == pytest.approx(losses["adamw"][-1], rel=0.1)
    assert losses["adamw8bit"][-1] < 0.1 * losses["adamw8bit"][0]


@needs_torchao
def test_small_steps_add_up_without_a_copy():
    """A step is a fiftieth of the spacing of bfloat16 at 1: rounding to the nearest would never move a weight."""
    weight = torch.ones(64, 64, dtype=torch.bfloat16)
    made = make_optimizer(OptimizerSection(name="adamw8bit", lr=2**-7 / 50, weight_decay=0.0), [weight], seed=0)
    assert isinstance(made, AdamW8bit)
    for _ in range(50):
        weight.grad = torch.ones(64, 64)
        made.step()
        made.zero_grad()
    assert weight.grad is None
    moved = 1 - weight.float()
    assert moved.mean().item() == pytest.approx(2**-7, rel=0.05)
    assert len(moved.unique()) > 2


@needs_torchao
def test_pieces_of_a_weight_move_as_the_whole(folder, monkeypatch):
    trained = []
    for piece in (optimizer.PIECE, 8192):
        monkeypatch.setattr(optimizer, "PIECE", piece)
        trainer = make_trainer(folder, "float32")
        for _ in range(2):
            trainer.supervised_step(EXAMPLES)
        trained.append(snapshot(trainer.model))
        pieces = max(len(pieces) for _, pieces in trainer.optimizer._pieces)
    assert pieces == 2
    assert same(*trained)


@needs_torchao
def test_a_resumed_run_goes_on_bit_for_bit_and_another_seed_rounds_otherwise(folder, tmp_path):
    trainer, other = make_trainer(folder), make_trainer(folder, seed=1)
    for _ in range(2):
        trainer.supervised_step(EXAMPLES)
        other.supervised_step(EXAMPLES)
    assert not same(snapshot(trainer.model), snapshot(other.model))
    path = checkpoint.save(tmp_path, 2, trainer.model, folder, {"trainer": trainer.state()})
    again = make_trainer(folder)
    again.load_state(checkpoint.load(path, again.model)["trainer"])
    torch.rand(7)  # what else draws random numbers does not matter
    assert trainer.supervised_step(EXAMPLES) == again.supervised_step(EXAMPLES)
    assert same(snapshot(trainer.model), snapshot(again.model))
