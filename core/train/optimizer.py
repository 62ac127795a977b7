"""Makes the optimizer: AdamW, or torchao's AdamW with moments of 8 bits (Dettmers et al. 2021, arXiv 2110.02861).

Moments of 8 bits come with stochastic rounding: a new weight becomes one of its two neighbours in bfloat16, the nearer
one more often, so that small steps add up in the mean. A bfloat16 weight then needs no float32 copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from core.config import OptimizerSection, RecipeError
from core.engine.heap import return_freed_memory
from core.types import derive_seed

BLOCK = 256
"""Counts the values of a moment that share a scale, a float32."""
SMALLEST = 4096
"""Says how many values torchao wants before it stores them in 8 bits."""
PIECE = 1 << 22
"""Limits the values of one call of torchao, which on the CPU takes up to 53 bytes for each of them."""
INSTALL = "pip install torchao==0.18.0"


def has_8bit_moments(section: OptimizerSection, size: int) -> bool:
    """Say whether the moments of a weight of `size` values are stored in 8 bits; norms and biases are too small."""
    return section.name == "adamw8bit" and size >= SMALLEST and size % BLOCK == 0


def needs_float32_copy(section: OptimizerSection, size: int, dtype: torch.dtype) -> bool:
    """Say whether a weight is optimized through a float32 copy.

    Rounding a new weight to the nearest value of bfloat16 would lose small steps. `cpu_offload` steps copies alone.
    """
    return section.cpu_offload or (dtype != torch.float32 and not has_8bit_moments(section, size))


def moment_bytes(section: OptimizerSection, size: int) -> int:
    """Return the bytes of both moments of a weight of `size` values."""
    if not has_8bit_moments(section, size):
        return 2 * 4 * size
    pieces = -(-size // _piece_size(size))
    # A byte for each value, a float32 for each block, and in each piece a table of the 256 values that a byte can mean.
    return 2 * (size + 4 * size // BLOCK + pieces * 4 * 256)


def make_optimizer(section: OptimizerSection, weights: Sequence[Tensor], seed: int) -> torch.optim.AdamW | AdamW8bit:
    """Return the optimizer that a recipe names. Weights of one axis, such as most norms and biases, do not decay.

    Raises:
        RecipeError: its package is not installed.
    """
    groups: list[dict[str, Any]] = [
        {"params": [weight for weight in weights if weight.ndim > 1]},
        {"params": [weight for weight in weights if weight.ndim <= 1], "weight_decay": 0.0},
    ]
    options: dict[str, Any] = {
        "lr": section.lr,
        "betas": (section.beta1, section.beta2),
        "weight_decay": section.weight_decay,
    }
    if section.name == "adamw8bit":
        return AdamW8bit(groups, options, seed)
    return torch.optim.AdamW(groups, **options, fused=True)


def require_package(name: str) -> None:
    """Raise RecipeError if the package of an optimizer is not installed."""
    if name == "adamw8bit" and find_spec("torchao") is None:
        raise RecipeError(f"optimizer.name: adamw8bit needs a package: {INSTALL}")


class AdamW8bit:
    """Runs torchao's AdamW8bit over pieces of the weights; gradients are float32, also of bfloat16 weights.

    The same seed and step round alike. On CUDA torchao compiles its step; on the CPU it runs as it is written, which is
    slow and needs no compiler.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], options: dict[str, Any], seed: int):
        require_package("adamw8bit")
        from torchao.optim import AdamW8bit as TorchaoAdamW8bit

        self._pieces: list[tuple[Tensor, tuple[Tensor, ...]]] = []
        cut_groups = [{**group, "params": [p for w in group["params"] for p in self._cut(w)]} for group in groups]
        self._optimizer = TorchaoAdamW8bit(cut_groups, **options, block_size=BLOCK, bf16_stochastic_round=True)
        self._seed, self._steps = seed, 0

    def _cut(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Return views of a weight in nearly equal pieces; whatever a step takes is then small."""
        pieces = _cut(weight.detach().view(-1), weight.numel())  # a copy would not move the weight
        for tensor in (weight, *pieces):
            tensor.grad_dtype = torch.float32  # a bfloat16 sum over many packs would stop growing
        self._pieces.append((weight, pieces))
        return pieces

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of pieces, with the rate of the next step."""
        return self._optimizer.param_groups

    def step(self) -> None:
        """Move the weights along their gradients."""
        for group in self.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]))  # a number would be compiled into the step
        for weight, pieces in self._pieces:
            if weight.grad is not None:
                for piece, gradient in zip(pieces, _cut(weight.grad, weight.numel()), strict=True):
                    piece.grad = gradient
        device = self._pieces[0][0].device
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
            if device.type == "cpu":
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            torch.manual_seed(derive_seed(self._seed, "rounding", self._steps))
            self._optimizer.step()
        for _, pieces in self._pieces:
            for piece in pieces:
                piece.grad = None
        if device.type == "cpu":
            return_freed_memory()
        self._steps += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the weights."""
        for weight, _ in self._pieces:
            weight.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the moments, as torchao stores them, and the number of steps."""
        return {"steps": self._steps, **self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._steps = state["steps"]
        self._optimizer.load_state_dict({name: state[name] for name in ("state", "param_groups")})


def _piece_size(size: int) -> int:
    """Return the values of each piece of a weight but the last: whole blocks, and not much more than PIECE at most."""
    if size % BLOCK:  # it has no blocks, and float32 moments
        return size
    pieces = -(-size // PIECE)
    return -(-size // (pieces * BLOCK)) * BLOCK


def _cut(tensor: Tensor, size: int) -> tuple[Tensor, ...]:
    return tensor.reshape(-1).split(_piece_size(size))
