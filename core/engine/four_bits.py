"""Keeps weights under adapters in 4 bits: NF4 with doubly quantized scales (QLoRA, arXiv 2305.14314, section 3).

A product computes with the weight restored in the number format of the model, in sampling and in training alike. The
numbers are those of bitsandbytes. Tensor suffixes: core/__init__.py.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from core.hub import CheckpointError

BLOCK = 64
"""Counts the values that share a scale."""
SCALES = 256
"""Counts the scales, of 8 bits each, that share a factor of 32 bits."""


class FourBits:
    """Holds the weight of one linear map, [outputs, inputs]."""

    def __init__(self, weight: Tensor):
        from bitsandbytes.functional import quantize_4bit

        self.packed, self.state = quantize_4bit(weight, blocksize=BLOCK, quant_type="nf4", compress_statistics=True)

    def __deepcopy__(self, memo: dict[int, Any]) -> FourBits:
        return self  # it never changes, and policies with adapters of one model share it

    def restore(self) -> Tensor:
        """Return the weight in the number format that it had."""
        from bitsandbytes.functional import dequantize_4bit

        weight: Tensor = dequantize_4bit(self.packed, self.state)
        return weight

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        y: Tensor = _Product.apply(x, self, bias)
        return y


class _Product(torch.autograd.Function):
    """Restores the weight once more in the backward pass, so that no layer's stays in memory between the two."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: FourBits, bias: Tensor | None) -> Tensor:
        ctx.weight = weight
        return F.linear(x, weight.restore(), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        return gradient @ ctx.weight.restore().to(gradient.dtype), None, None


def can_pack(shape: torch.Size) -> bool:
    """Return whether a weight of this shape is kept in 4 bits: its rows must be whole blocks."""
    return shape[1] % BLOCK == 0


def packed_bytes(values: int) -> int:
    """Return the bytes of a weight of so many values."""
    scales = values // BLOCK
    return values // 2 + scales + 4 * -(-scales // SCALES)


def require_package() -> None:
    """Raise CheckpointError if bitsandbytes is not installed."""
    if find_spec("bitsandbytes") is None:
        raise CheckpointError("model.lora.load_in_4bit needs a package: pip install bitsandbytes==0.50.2")
