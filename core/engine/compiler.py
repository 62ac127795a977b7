"""Compiles what the trainer's layers compute before and after attention, with torch.compile (`model.compile`)."""

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

    The modules of all layers share its graphs, because a graph takes weights as inputs. PyTorch makes further graphs
    for one token, for more than 4,096, for another number of threads, and for inputs without gradient. After eight it
    computes what has no graph as it is written.
    """
    compiled = torch.compile(function)

    def call(module: nn.Module, *tensors: Tensor) -> Any:
        for tensor in tensors:
            # Not dynamic=True: a pack with as many tokens as the width would make the width dynamic too.
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return compiled(module, *tensors)

    return call


def require_compiler(device: torch.device) -> None:
    """Raise RecipeError unless PyTorch can compile for `device`: a small function is compiled to find out."""
    try:
        torch.compile(torch.exp)(torch.ones(2, device=device))
    except (RuntimeError, OSError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # The compiler's own message is far down; PyTorch's has a headline before it.
        reason = next((line for line in lines if "error:" in line), " ".join(lines[:2]))
        raise RecipeError(
            f"model.compile: PyTorch cannot compile for {device}. Install a C++ compiler and Python's headers (apt-get "
            f"install g++ python3-dev), or set model.compile=false. PyTorch says: {reason}"
        ) from error
