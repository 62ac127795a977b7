"""Takes and gives back the memory of large tensors."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Name options of mallopt(3)."""
MEGABYTE = 1 << 20
LARGE = 1 << 28
"""Before a tensor of at least this many bytes comes, freed memory goes back, which takes time."""


def return_freed_memory() -> None:
    """Give freed memory back to the system; glibc keeps most of it for smaller tensors."""
    _call_glibc("malloc_trim", 0)


@cache
def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MB of freed memory from the start; it comes to these limits by itself, but slowly.

    Else a tensor of some megabytes comes from the system each time, which clears it: a seventh of a small model's time.
    It has an effect once, so that `map_large_tensors` stays in force.
    """
    _call_glibc("mallopt", M_MMAP_THRESHOLD, 32 * MEGABYTE)
    _call_glibc("mallopt", M_TRIM_THRESHOLD, 64 * MEGABYTE)


def map_large_tensors() -> None:
    """Give every tensor of a megabyte or more memory of its own, which goes back to the system with it.

    Else glibc takes it from one heap, where tensors that stay lie between those that go. With it a step takes up to a
    quarter longer, for the system clears the memory each time.
    """
    _call_glibc("mallopt", M_MMAP_THRESHOLD, MEGABYTE)


def _call_glibc(name: str, *arguments: int) -> None:
    """Call a function that no other C library has; do nothing where it is missing."""
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)


def allocate_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate a large tensor that is written to between steps too. On the CPU only what is touched takes memory."""
    with torch.inference_mode(False):  # a step, which may be the first to need it, computes in that mode
        if device.type != "cpu":
            return torch.zeros(*shape, dtype=dtype, device=device)
        size = math.prod(shape) * dtype.itemsize
        if size >= LARGE:
            return_freed_memory()
        # The system gives zeros when memory is first touched; torch.zeros would touch all of it.
        return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(*shape)
