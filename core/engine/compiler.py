"""Compiles what the trainer computes with torch.compile, once for all layers and lengths (`model.compile`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from core.config import RecipeError


@cache
def compile_for_all_lengths(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of a module and of tensors that all have the tokens as their first axis.

    The modules of all layers share its graphs, because a graph takes weights as inputs.
    """
    compiled = torch.compile(function, fullgraph=True)

    def call(module: nn.Module, *tensors: Tensor) -> Any:
        for tensor in tensors:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return compiled(module, *tensors)

    return call


def require_compiler(device: torch.device) -> None:
    """Raise RecipeError unless PyTorch can compile for `device`: a small function is compiled to find out."""
    try:
        torch.compile(torch.exp)(torch.ones(2, device=device))
    except (RuntimeError, OSError) as error:
        raise RecipeError(
            f"model.compile: PyTorch cannot compile for {device} ({str(error).strip().splitlines()[0]}); "
            "install a C++ compiler (apt-get install g++), or set model.compile=false"
        ) from error
