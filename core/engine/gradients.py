"""Moves gradients from the weights to their float32 copies during a backward pass, each as soon as it is known.

A sum in bfloat16 over many packs would stop growing. Where the copies lie in the machine's memory beside a card
(`optimizer.cpu_offload`), a gradient goes there in the weight's number format while the card computes the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor


@contextmanager
def move_gradients(pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Add the gradients of a backward pass within to those of the copies; `pairs` are copies with their weights."""
    mover = _Mover()
    hooks = [weight.register_post_accumulate_grad_hook(partial(mover.move, copy)) for copy, weight in pairs]
    try:
        yield
        mover.finish()
    finally:
        for hook in hooks:
            hook.remove()


class _Mover:
    """Has one gradient at most on its way to the machine's memory, so that a card holds no more than two."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._under_way: tuple[Tensor, Tensor] | None = None

    def move(self, copy: Tensor, weight: Tensor) -> None:
        """Take the gradient of a weight and add it to that of its copy, or begin to."""
        gradient, weight.grad = weight.grad, None
        assert gradient is not None
        if gradient.device == copy.device:
            _add(copy, gradient)
            return
        self.finish()
        self._stream = self._stream or torch.cuda.Stream(gradient.device)
        self._stream.wait_stream(torch.cuda.current_stream(gradient.device))
        pinned = torch.empty_like(gradient, device=copy.device, pin_memory=True)
        with torch.cuda.stream(self._stream):
            pinned.copy_(gradient, non_blocking=True)
        gradient.record_stream(self._stream)  # its memory is not used again before it is copied
        self._under_way = copy, pinned

    def finish(self) -> None:
        """Wait for the gradient that is on its way, and add it."""
        if self._under_way is None:
            return
        assert self._stream is not None
        self._stream.synchronize()
        _add(*self._under_way)
        self._under_way = None


def _add(copy: Tensor, gradient: Tensor) -> None:
    if copy.grad is None:
        copy.grad = gradient.to(torch.float32, copy=True)  # what is pinned serves the next gradient
    else:
        copy.grad += gradient
