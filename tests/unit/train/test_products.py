"""bfloat16 attention by products rounds hardly more than PyTorch's kernel, however it is cut, whatever keys share."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from core.train import products
from core.train.packing import pack_rows
from core.train.products import ProductAttention
from core.types import Row


def attend(kernel: bool, tensors: list[Tensor], last: Tensor, grad: Tensor) -> list[Tensor]:
    """Return the attended values and the gradients of queries, keys and values, in float64."""
    q, k, v = (tensor.detach().clone().requires_grad_() for tensor in tensors)
    if kernel:
        seen = torch.arange(k.shape[2]) <= last[..., None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
    else:
        out = ProductAttention.apply(q, k, v, last)
    out.backward(grad.to(out.dtype))
    return [tensor.detach().double() for tensor in (out, *(x.grad for x in (q, k, v)))]  # type: ignore[union-attr]


@pytest.mark.parametrize(("chunk", "fewest"), [(1 << 19, 32), (1, 7)], ids=["whole", "in chunks of 7"])
@pytest.mark.parametrize(("heads", "kv_heads", "root"), [(4, 2, 0), (6, 1, 40)], ids=["roots", "branches"])
@pytest.mark.parametrize("shared", [0.0, 30.0], ids=["keys", "keys with much in common"])
def test_products_round_hardly_more_than_the_kernel(
    shared: float, heads: int, kv_heads: int, root: int, chunk: int, fewest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "CHUNK", chunk)
    monkeypatch.setattr(products, "FEWEST", fewest)
    draw = torch.Generator().manual_seed(0)
    q, grad = (torch.randn(3, heads, 25, 16, generator=draw).bfloat16() for _ in range(2))
    k, v = (torch.randn(3, kv_heads, root + 25, 16, generator=draw).bfloat16() for _ in range(2))
    k = (k + shared * torch.randn(16, generator=draw)).bfloat16()
    # Three segments of 25, 9 and 1 tokens, of which the last two are padded, behind roots of three lengths.
    roots, lengths = torch.tensor([root, root // 2, root // 4]), torch.tensor([25, 9, 1])
    last = torch.minimum(roots[:, None] + torch.arange(25), (roots + lengths - 1)[:, None])[:, None]
    right = attend(True, [x.double() for x in (q, k, v)], last, grad)
    ours, kernels = (attend(kernel, [q, k, v], last, grad) for kernel in (False, True))
    for name, truth, found, theirs in zip(("out", "q", "k", "v"), right, ours, kernels, strict=True):
        error, allowed = (float((x - truth).square().mean().sqrt()) for x in (found, theirs))
        assert error <= 2.5 * allowed, name


def test_the_scores_of_many_branches_are_in_memory_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no mask of all queries and keys, which would stay there until the last pack of a step."""
    sizes, weigh = list[int](), products._weigh

    def record(*chunk: Tensor) -> Tensor:
        weights = weigh(*chunk)
        sizes.append(weights.numel())
        return weights

    monkeypatch.setattr(products, "_weigh", record)
    rows = [Row((*range(400), *[i] * 50), (1,) * 50, (-1.0,) * 50, 1.0, i) for i in range(48)]
    [pack] = pack_rows(rows, 8192, torch.device("cpu"))
    q, k, v = (torch.zeros(len(pack.ids_T), heads, 16, dtype=torch.bfloat16) for heads in (4, 2, 2))
    pack.attend(0, q, k, v)
    assert max(sizes) <= 2 * products.CHUNK
    assert all(bucket.bias_N1LS is None for bucket in pack.attend.padded.buckets)
