"""bfloat16 attention by products rounds hardly more than PyTorch's kernel, however it is cut, whatever keys share."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from core.train import products
from core.train.products import ProductAttention


def attend(kernel: bool, tensors: list[Tensor], bias: Tensor, root: int, grad: Tensor) -> list[Tensor]:
    """Return the attended values and the gradients of queries, keys and values, in float64."""
    q, k, v = (tensor.detach().clone().requires_grad_() for tensor in tensors)
    if kernel:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), enable_gqa=True)
    else:
        out = ProductAttention.apply(q, k, v, bias.to(q.dtype), root)
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
    hidden = torch.arange(root + 25) > torch.arange(root, root + 25)[:, None]
    bias = torch.zeros(3, 1, 25, root + 25).masked_fill(hidden, -math.inf)
    right = attend(True, [x.double() for x in (q, k, v)], bias.double(), root, grad)
    ours, kernels = (attend(kernel, [q, k, v], bias, root, grad) for kernel in (False, True))
    for name, truth, found, theirs in zip(("out", "q", "k", "v"), right, ours, kernels, strict=True):
        error, allowed = (float((x - truth).square().mean().sqrt()) for x in (found, theirs))
        assert error <= 2.5 * allowed, name
