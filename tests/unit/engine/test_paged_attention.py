"""The Triton kernel of a GPU: interpreted against plain attention, and compiled for GPUs that are not here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from core.engine import attention
from tests import kit
from tests.unit.conftest import MODEL_CONFIG
from tests.unit.engine.test_attention import check
from tests.unit.engine.test_graphs import check_recorded_steps

pytest.importorskip("triton", reason=kit.TRITON)
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.interpreter import InterpretedFunction

from core.engine import paged_attention
from core.engine.paged_attention import attend_pages

PAGE = 16
KERNEL = paged_attention._attend_part
CPU = torch.device("cpu")


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton's interpreter run the kernel, with NumPy. It multiplies bfloat16 wrongly, so that is not tested."""
    if torch.cuda.is_available():
        pytest.skip("Triton's interpreter fails beside a GPU; there test_cuda.py runs the kernel itself")
    for name in ("max", "sum"):
        # A call of an InterpretedFunction leaves triton.language patched, and then nothing can be compiled.
        monkeypatch.setattr(tl, name, InterpretedFunction(getattr(tl, name).fn).rewrite())
    monkeypatch.setattr(paged_attention, "_attend_part", InterpretedFunction(KERNEL.fn))


def make_batch(lengths: Sequence[int], sizes: tuple[int, int, int], dtype: torch.dtype) -> tuple[Any, ...]:
    """Draw the arguments of `attend_pages`; `sizes` are query heads, key heads and the width of a head."""
    torch.manual_seed(0)
    heads, kv_heads, head_dim = sizes
    width = -(-max(lengths) // PAGE)
    table_NP = 1 + torch.randperm(len(lengths) * width).view(len(lengths), width).int()
    places = (len(lengths) * width + 1) * PAGE
    tensors = [
        torch.randn(count, h, head_dim).to(dtype) for count, h in ((len(lengths), heads), *[(places, kv_heads)] * 2)
    ]
    tensors[1][:PAGE] = tensors[2][:PAGE] = torch.nan  # the null page, which nothing may read
    return (*tensors, table_NP, torch.tensor(lengths), PAGE)


def attend_exactly(
    q_NHD: Tensor, keys: Tensor, values: Tensor, table_NP: Tensor, lengths_N: Tensor, page: int
) -> Tensor:
    numbers = [tensor.float() for tensor in (q_NHD, keys, values)]
    return paged_attention._attend_one_by_one(*numbers, table_NP, lengths_N.tolist(), page)


class Watched:
    """Stands for a Triton kernel and tells which grids it is launched on."""

    def __init__(self, kernel: Any, tell: Callable[[tuple[int, ...]], None]):
        self.kernel, self.tell = kernel, tell

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        self.tell(grid)
        return self.kernel[grid]


@pytest.mark.parametrize("part", [64, 512])
@pytest.mark.parametrize("sizes", [(2, 2, 16), (14, 2, 64), (9, 3, 64), (4, 1, 80), (40, 2, 32)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float16, 2e-3)])
def test_the_kernel_computes_plain_attention(interpreted, monkeypatch, dtype, tolerance, sizes, part):
    monkeypatch.setattr(paged_attention, "PART", part)
    batch = make_batch([1, 15, 64, 65, 300, 128], sizes, dtype)
    out_NHD = attend_pages(*batch)
    assert out_NHD.dtype == dtype
    torch.testing.assert_close(out_NHD.float(), attend_exactly(*batch), atol=tolerance, rtol=tolerance)


def test_parts_grow_until_their_results_fit(interpreted, monkeypatch):
    monkeypatch.setattr(paged_attention, "PART", 16)
    batch = make_batch([200, 7], (4, 2, 16), torch.float32)
    # 200 tokens have 13, 7, 4, 2 or 1 parts as a part doubles. The results of a part are as large as the queries.
    launched = []
    watched = Watched(paged_attention._attend_part, lambda grid: launched.append(grid[2]))
    monkeypatch.setattr(paged_attention, "_attend_part", watched)
    for room in (13, 12, 5, 1, 0):
        monkeypatch.setattr(paged_attention, "PARTS_BYTES", room * batch[0].nbytes)
        torch.testing.assert_close(attend_pages(*batch), attend_exactly(*batch), atol=1e-6, rtol=1e-6)
    assert launched == [13, 7, 4, 1, 1]


@pytest.mark.parametrize("lengths", [[1], [5, 17, 16, 300]])
def test_the_engine_attends_with_it(interpreted, monkeypatch, lengths):
    monkeypatch.setattr(attention, "_find_page_kernel", lambda _: attend_pages)
    check([length - 1 for length in lengths], [1] * len(lengths), len(lengths), kv_heads=2, group=3, head_dim=32)


def test_recorded_steps_attend_with_it(interpreted, monkeypatch, qwen2):
    check_recorded_steps(qwen2, monkeypatch, {"_find_page_kernel": lambda _: attend_pages}, 4)


def test_the_probe_takes_the_kernel_and_no_other_format(interpreted):
    assert paged_attention.has_paged_attention(CPU, torch.float32, 6, 2, 32, PAGE)
    assert not paged_attention.has_paged_attention(CPU, torch.float64, 6, 2, 32, PAGE)


def skip_a_token(*batch: Any) -> Tensor:
    *tensors, lengths_N, page = batch
    return attend_exactly(*tensors, (lengths_N - 1).clamp(min=1), page)


def shift_the_pages(*batch: Any) -> Tensor:
    *tensors, table_NP, lengths_N, page = batch
    return attend_exactly(*tensors, table_NP.roll(1, dims=1), lengths_N, page)


def give_no_number(q_NHD: Tensor, *rest: Any) -> Tensor:
    return torch.full_like(q_NHD, torch.nan)


def is_missing(*batch: Any) -> Tensor:
    raise RuntimeError("no kernel image is available")


@pytest.mark.parametrize("kernel", [skip_a_token, shift_the_pages, give_no_number, is_missing])
def test_the_probe_refuses_a_kernel_that_is_wrong_or_does_not_run(interpreted, monkeypatch, kernel):
    monkeypatch.setattr(paged_attention, "attend_pages", kernel)
    with pytest.warns(UserWarning, match="so pages are gathered"):
        assert not paged_attention.has_paged_attention(CPU, torch.float32, 6, 2, 32, PAGE)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """Let the probe accept everything on a GPU that is not here; collect what it is asked."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(paged_attention, "has_paged_attention", lambda *sizes: not calls.append(sizes))
    attention._find_triton_kernel.cache_clear()
    yield calls
    attention._find_triton_kernel.cache_clear()


CACHE = SimpleNamespace(
    device=torch.device("cuda"),
    dtype=torch.bfloat16,
    config=replace(MODEL_CONFIG, num_heads=6, num_kv_heads=2, head_dim=32),
    page_size=PAGE,
)


def test_a_gpu_takes_the_kernel_that_the_probe_accepts_and_is_asked_once(asked):
    for _ in range(2):
        assert attention._find_page_kernel(CACHE) is attend_pages  # type: ignore[arg-type]
    assert asked == [(CACHE.device, CACHE.dtype, 6, 2, 32, PAGE)]


def test_a_gpu_gathers_pages_without_triton_or_after_a_refusal(asked, monkeypatch):
    monkeypatch.setattr(paged_attention, "has_paged_attention", lambda *sizes: False)
    assert attention._find_page_kernel(CACHE) is None  # type: ignore[arg-type]
    attention._find_triton_kernel.cache_clear()
    monkeypatch.delattr("core.engine.paged_attention")
    monkeypatch.setitem(sys.modules, "core.engine.paged_attention", None)
    assert attention._find_page_kernel(CACHE) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("capability", [80, 89, 90, 100, 120])
def test_it_compiles_for_tensor_cores_and_the_shared_memory_of_each_gpu(capability):
    constants = paged_attention.make_constants(group=7, kv_heads=4, head_dim=128, page_size=PAGE)
    types = dict.fromkeys(("q_NHD", "keys", "values"), "*bf16") | {"table_NP": "*i32", "lengths_N": "*i64"}
    types |= dict.fromkeys(("out_NHXD", "lse_NHX"), "*fp32")
    numbers = {"table_stride": "i32", "part_tokens": "i32", "scale": "fp32"}
    place = {name: index for index, name in enumerate(KERNEL.arg_names)}
    source = ASTSource(
        KERNEL,
        types | numbers | dict.fromkeys(constants, "constexpr"),
        {(place[name],): value for name, value in constants.items()},
        {(place[name],): [["tt.divisibility", 16]] for name in types},  # PyTorch aligns tensors
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert "mma" in compiled.asm["ptx"]
    assert compiled.metadata.shared <= 48 * 1024  # what every GPU gives without being asked for more
