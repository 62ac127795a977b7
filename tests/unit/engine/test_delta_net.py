"""The gated delta rule: in chunks as token by token, and no state of one row reaches another."""

from __future__ import annotations

import pytest
import torch

from core.engine import weights
from core.engine.delta_net import CHUNK, DeltaNet, _apply_in_chunks, _apply_once
from core.train.packing import PackedAttention
from tests.unit.conftest import save_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("length", [2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
def test_chunks_compute_what_the_formula_says(length: int) -> None:
    generator = torch.Generator().manual_seed(length)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q, k, v = draw(2, length, 3, 8), draw(2, length, 3, 8) * 8**-0.5, draw(2, length, 3, 5)
    decay, beta, start = -draw(2, length, 3).exp(), draw(2, length, 3).sigmoid(), draw(2, 3, 8, 5)
    inputs = [x.requires_grad_() for x in (q, k, v, decay, beta, start)]
    memory, outputs = start, []
    for t in range(length):
        memory = memory * decay[:, t, :, None, None].exp()
        read = torch.einsum("nhd,nhde->nhe", k[:, t], memory)
        memory = memory + torch.einsum("nhd,nhe->nhde", k[:, t], beta[:, t, :, None] * (v[:, t] - read))
        outputs.append(torch.einsum("nhd,nhde->nhe", q[:, t], memory))
    expected = torch.stack(outputs, dim=1)
    found, end = _apply_in_chunks(*inputs)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(end, memory)
    once, _ = _apply_once(q[:, :1], k[:, :1], v[:, :1], decay[:, :1], beta[:, :1], start)
    torch.testing.assert_close(once[:, 0], expected[:, 0])
    weighting = draw(*expected.shape)
    ours, theirs = (torch.autograd.grad((out * weighting).sum(), inputs) for out in (found, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> DeltaNet:
    model = weights.load(save_model("qwen3_5", tmp_path_factory.mktemp("delta"), seed=0))
    found = model.get_submodule("model.layers.0.linear_attn")
    assert isinstance(found, DeltaNet)
    return found


def feed(layer: DeltaNet, attend: PackedAttention, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return attend.recur(0, layer.advance, *inputs)


def draw_inputs(layer: DeltaNet, count: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(count)
    heads = layer.num_v_heads
    return torch.randn(count, layer.conv1d.in_channels), -torch.rand(count, heads), torch.rand(count, heads)


def test_rows_in_a_pack_equal_rows_alone_to_the_bit(layer: DeltaNet) -> None:
    lengths = [5, 130, 64, 1, 70, 65, 2, 200]
    inputs = draw_inputs(layer, sum(lengths))
    packed = feed(layer, PackedAttention(lengths, [], [], CPU), inputs).split(lengths)
    parts = zip(*(x.split(lengths) for x in inputs), strict=True)
    for length, row, out in zip(lengths, parts, packed, strict=True):
        assert torch.equal(feed(layer, PackedAttention([length], [], [], CPU), row), out)


def test_a_branch_goes_on_from_the_state_of_its_own_root(layer: DeltaNet) -> None:
    roots, branches, branch_roots = [70, 9, 64], [3, 80, 1, 20], [2, 0, 0, 1]
    inputs = draw_inputs(layer, sum(roots) + sum(branches))
    packed = feed(layer, PackedAttention(roots, branches, branch_roots, CPU), inputs).split([*roots, *branches])
    pieces = [x.split([*roots, *branches]) for x in inputs]
    for number, root in enumerate(branch_roots):
        row = tuple(torch.cat([parts[root], parts[len(roots) + number]]) for parts in pieces)
        alone = feed(layer, PackedAttention([len(row[0])], [], [], CPU), row)
        torch.testing.assert_close(packed[len(roots) + number], alone[roots[root] :], atol=1e-6, rtol=1e-5)
