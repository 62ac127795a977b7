"""Compiled layers: few graphs for all of them, the gradients of eager ones, and nothing compiled but training."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config

from core.algorithms.grpo import GRPOConfig
from core.config import LoRASection, OptimizerSection, RecipeError
from core.engine import lora, weights
from core.engine.model import CausalLM, compile_for_all_lengths
from core.train.command import require_compiler
from core.train.packing import pack_rows
from core.train.trainer import Trainer
from core.types import Row
from tests import kit
from tests.unit.conftest import gradients, save_model
from tests.unit.train.test_trainer import make_rows

ROWS = make_rows()


@pytest.fixture(autouse=True)
def fresh_graphs() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


@pytest.fixture
def needs_compiler() -> None:
    kit.require(shutil.which("g++"), kit.COMPILER)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let graphs be made and differentiated as ever, but not compiled to C++, which takes most of a minute."""
    compile_for_all_lengths.cache_clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    yield
    compile_for_all_lengths.cache_clear()


def take_step(
    folder: Path, compiled: bool, *, dtype: str = "float32", rank: int = 0, kl: float = 0.0, **options
) -> tuple[CausalLM, dict[str, torch.Tensor]]:
    """Return the model, and the gradients of a step by the names of what is trained."""
    model = weights.load(folder, dtype, "cpu")
    if rank:
        lora.add_adapters(model, LoRASection(rank=rank, alpha=8))
        for number, adapter in enumerate(lora.find_adapters(model).values()):
            torch.nn.init.normal_(adapter.lora_B, std=0.1, generator=torch.Generator().manual_seed(number))
    return model, gradients(model, ROWS, grpo=GRPOConfig(kl_loss_coef=kl), compiled=compiled, **options)


def relative_error(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Return the error of the whole gradient, and the largest of a single weight's, each relative to its norm."""
    errors, norms = (
        torch.stack([x.norm() for x in xs]) for xs in ([found[name] - exact[name] for name in exact], [*exact.values()])
    )
    return (errors.norm() / norms.norm()).item(), (errors / norms).max().item()


def test_all_layers_share_graphs_and_have_the_gradients_of_eager_layers(tmp_path, needs_compiler):
    folder = save_model("qwen3", tmp_path, seed=0)  # with all that a layer can have but biases
    for max_tokens in (64, 40, 200):
        options = {"kl": 0.1, "max_tokens": max_tokens}  # the KL term copies the model
        exact = take_step(folder, False, **options)[1]
        model, found = take_step(folder, True, **options)
        assert found.keys() == exact.keys()
        whole, single = relative_error(found, exact)
        assert whole < 1e-6
        assert single < 3e-6
    assert len(pack_rows(ROWS, 40, model.device)) > 3
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]
    plain = weights.load(folder, device="cpu")
    assert [*model.state_dict()] == [*plain.state_dict()]
    for copied in (deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all(torch.equal(a, b) for a, b in zip(copied.parameters(), plain.parameters(), strict=True))


def test_packs_of_thousands_of_tokens_take_two_more_graphs(qwen2, needs_compiler):
    model = weights.load(qwen2, device="cpu")
    trainer = Trainer(model, OptimizerSection(lr=0.0, max_tokens_per_pack=5000), compiled=True)
    for tokens in (100, 200, 4200, 4500, 5000):
        row = Row(tuple(i % 60 for i in range(tokens)), (1,) * 10, (-4.0,) * 10, 1.0, rollout_id=0)
        assert trainer.grpo_step([row])["nonfinite_steps"] == 0.0
    assert counters["stats"]["unique_graphs"] == 4


def test_what_no_graph_is_made_for_any_more_is_computed_as_it_is_written(qwen2, traced):
    with torch._dynamo.config.patch(recompile_limit=1):
        for rank in (0, 4):  # adapters would need graphs of their own
            exact, found = (take_step(qwen2, compiled, rank=rank)[1] for compiled in (False, True))
            assert relative_error(found, exact)[0] < 1e-6
    assert counters["stats"]["unique_graphs"] == 2


def test_compiled_layers_go_with_checkpointing_and_adapters_in_bfloat16(qwen2, traced):
    options = {"dtype": "bfloat16", "rank": 4, "checkpointing": True, "max_tokens": 64}
    (_, exact), (_, found) = (take_step(qwen2, compiled, **options) for compiled in (False, True))
    assert found.keys() == exact.keys()
    whole, single = relative_error(found, exact)
    assert whole < 0.02
    assert single < 0.05
    # The inputs of the first layer have no gradient, for the embedding is not trained.
    assert counters["stats"]["unique_graphs"] == 4


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_has_no_gradient_is_not_compiled(qwen2, mode):
    (pack,) = pack_rows(ROWS, 4096, torch.device("cpu"))
    model = weights.load(qwen2, device="cpu")
    hidden = []
    for model.compiled in (False, True):
        with mode():
            hidden.append(model(pack.ids_T, pack.positions_T, pack.attend, pack.predict_R))
    assert torch.equal(*hidden)
    assert not counters["stats"]


def test_a_machine_without_a_compiler_is_told_what_to_do(needs_compiler):
    device = torch.device("cpu")
    require_compiler(device)  # raises nothing
    torch.compiler.reset()
    with (
        config.patch({"cpp.cxx": ("no-such-compiler",)}),
        pytest.raises(RecipeError, match=r"^model\.compile: .* set model\.compile=false\. .*no-such-compiler"),
    ):
        require_compiler(device)
