"""Linear maps of our own are right, and round a row alike whatever its neighbours are; in float32 as PyTorch does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from core.config import LoRASection
from core.engine import kernel, lora
from core.engine.model import Linear
from tests.unit.conftest import threads

ROWS = [1, 15, 16, 17, 31, 32, 33, 48, 70, 300]
SHAPES = [(32, 32), (96, 64), (64, 576), (576, 4096)]  # N, K


@pytest.fixture
def tiles():
    if not torch.cpu._is_amx_tile_supported():
        pytest.skip("this CPU has no tiles")
    if kernel.find_kernel() is None:
        pytest.skip("no C++ compiler here")
    assert kernel.has_tiles()


@pytest.fixture
def panels_of_float32():
    if not kernel.panel_width():
        pytest.skip("no CPU of AMD, or no C++ compiler here")


needs_tiles = pytest.mark.usefixtures("tiles")


def draw(rows: int, values: int, seed: int) -> Tensor:
    return torch.randn(rows, values, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.usefixtures("panels_of_float32")
@pytest.mark.parametrize("shape", [*SHAPES, (33, 40), (688, 256), (256, 688), (12, 201)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_of_float32_has_the_bits_of_pytorch_for_any_number_of_threads(shape, biased):
    generator = torch.Generator().manual_seed(0)
    weight, bias = (torch.randn(*size, generator=generator) for size in (shape, shape[:1]))
    bias = bias if biased else None
    panels = kernel.pack_panels(weight)
    x = torch.randn(300, shape[1], generator=generator)
    with threads(1):
        expected = F.linear(x, weight, bias)
        assert torch.equal(F.linear(x[:4], weight, bias), expected[:4])
    for count in (1, 2, 3):
        with threads(count):
            for rows in (2, 3, 4, 5, 6, 7, 11, 12, 13, 193, *ROWS):
                assert torch.equal(kernel.multiply(x[:rows], panels, bias, shape[0]), expected[:rows])
                assert torch.equal(kernel.multiply(x[-rows:], panels, bias, shape[0]), expected[-rows:])


@pytest.mark.usefixtures("panels_of_float32")
@pytest.mark.parametrize("outputs", [48, kernel.FEWEST_OUTPUTS - 1])
def test_a_map_of_float32_has_the_same_bits_while_an_engine_samples(outputs):
    torch.manual_seed(0)
    linear = Linear(64, outputs)
    adapter = linear.adapter = lora.Adapter(linear, LoRASection(rank=4), torch.Generator().manual_seed(0))
    nn.init.normal_(adapter.lora_B)
    linear.prepack()
    x = torch.randn(40, 64)
    with threads(1):
        trained = linear(x)
        with torch.inference_mode():
            assert torch.equal(linear(x), trained)
            linear.adapter = None
            if outputs >= kernel.FEWEST_OUTPUTS:
                assert torch.equal(linear(x[:1]), linear(x)[:1])


@needs_tiles
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_is_that_of_float64_rounded_once(shape, biased):
    weight, bias = draw(*shape, seed=0), draw(1, shape[0], seed=1)[0] if biased else None
    panels = kernel.pack_panels(weight)
    for rows in ROWS:
        x = draw(rows, shape[1], seed=rows)
        exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        # bfloat16 has 8 bits; the sums in float32 add an error that grows with what was added up.
        error = (kernel.multiply(x, panels, bias, shape[0]).double() - exact).abs()
        assert (error <= exact.abs() / 256 + 1e-5 * shape[1] ** 0.5).all()


@needs_tiles
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_alone_and_beside_others_for_any_number_of_threads(shape):
    panels = kernel.pack_panels(draw(*shape, seed=0))
    x = draw(max(ROWS), shape[1], seed=1)
    with threads(1):
        alone = torch.cat([kernel.multiply(row, panels, None, shape[0]) for row in x.split(1)])
    for count in (1, 2, 3):
        with threads(count):
            for rows in ROWS:
                assert torch.equal(kernel.multiply(x[:rows], panels, None, shape[0]), alone[:rows])
                assert torch.equal(kernel.multiply(x[-rows:], panels, None, shape[0]), alone[-rows:])


@needs_tiles
def test_what_is_not_finite_stays_in_its_row():
    panels = kernel.pack_panels(draw(64, 64, seed=0))
    x = draw(40, 64, seed=1)
    clean = kernel.multiply(x, panels, None, 64)
    x[3, 5], x[35, 7] = torch.nan, torch.inf
    out = kernel.multiply(x, panels, None, 64)
    assert not out[[3, 35]].isfinite().any()
    others = [row for row in range(40) if row not in (3, 35)]
    assert torch.equal(out[others], clean[others])


@needs_tiles
def test_a_map_multiplies_on_tiles_while_an_engine_samples_if_its_sizes_fit():
    torch.manual_seed(0)
    for sizes, on_tiles in [((64, 96), True), ((64, 48), False), ((48, 64), False)]:
        linear = Linear(*sizes, dtype=torch.bfloat16)
        linear.prepack()
        assert linear.prepacked is not None
        assert linear.prepacked.is_mkldnn != on_tiles
        x = draw(40, sizes[0], seed=0)
        trained = linear(x)
        with torch.inference_mode():
            sampled = linear(x)
        assert trained.requires_grad
        torch.testing.assert_close(sampled, trained, rtol=2**-7, atol=1e-4)
        if on_tiles:
            assert torch.equal(sampled, kernel.multiply(x, linear.prepacked, linear.bias, sizes[1]))


@needs_tiles
@pytest.mark.parametrize("rank", [4, 40])
def test_adapters_are_added_to_a_row_alone_as_beside_others(rank):
    """PyTorch's product has other bits here with two threads and 31 or 32 rows."""
    torch.manual_seed(0)
    linear = Linear(4864, 96, dtype=torch.bfloat16)
    adapter = linear.adapter = lora.Adapter(linear, LoRASection(rank=rank), torch.Generator().manual_seed(0))
    nn.init.normal_(adapter.lora_B)
    linear.prepack()
    x = draw(max(ROWS), 4864, seed=0)
    with torch.inference_mode():
        together = linear(x)
        for count in (1, 2, 3):
            with threads(count):
                assert all(torch.equal(linear(x[-rows:]), together[-rows:]) for rows in ROWS)
    torch.testing.assert_close(together, linear(x), rtol=2**-6, atol=2**-4)
