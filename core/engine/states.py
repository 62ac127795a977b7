"""States of layers that remember in place of attending: one of fixed size a sequence, beside the pages of the cache.

A running sequence has a slot. When a prompt is computed up to the end of a page, the state there is copied into another
slot, so that later sequences that begin alike go on from it. Tensor suffixes: core/__init__.py; W counts the tokens
that a convolution looks back, H and [D, E] the heads of a memory and its sizes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from core.engine.heap import allocate_zeros

CHUNK = 64
"""Counts the tokens whose changes of the memory are computed by products of matrices, all at once. Runs whose numbers
of chunks have the same power of two are padded together."""


def count_slots(sequences: int) -> int:
    """Return how many slots an engine has that runs so many sequences at once: as many for copies, and one more."""
    return 2 * sequences + 1


class State(NamedTuple):
    """Holds what one layer knows of N sequences."""

    recent_NWC: Tensor
    """The inputs of the convolution at the last W tokens."""
    memory_NHDE: Tensor
    """The memory, in float32."""


class StateSizes(NamedTuple):
    """Says which layers have states, and how large those of one sequence are."""

    layers: tuple[int, ...]
    recent_WC: tuple[int, int]
    memory_HDE: tuple[int, int, int]

    def count_bytes(self, itemsize: int) -> int:
        """Return the bytes of one sequence, if numbers of the model take `itemsize`."""
        (width, channels), (heads, keys, values) = self.recent_WC, self.memory_HDE
        return len(self.layers) * (width * channels * itemsize + heads * keys * values * 4)


Advance = Callable[..., tuple[Tensor, State]]
"""Maps (state or None, lengths_N, inputs [N, L, ...]) to outputs [N, L, ...] and the next state. Inputs behind the end
of a sequence are zeros, and change nothing."""

Recur = Callable[..., Tensor]
"""Maps (layer, advance, inputs [T, ...]) to outputs [T, ...]: it feeds every sequence on T to `advance`."""


class Runs(NamedTuple):
    """Describes N runs of consecutive tokens on T, padded to the longest one, L."""

    numbers_N: Tensor
    tokens_NL: Tensor
    inside_NL: Tensor
    lengths_N: Tensor

    def gather(self, x_T: Tensor) -> Tensor:
        """Return the inputs of the runs, [N, L, ...], and zeros where they are padded."""
        x_NL = x_T[self.tokens_NL]
        return x_NL * self.inside_NL.view(*self.inside_NL.shape, *[1] * (x_NL.dim() - 2))


class Recurrence:
    """Feeds runs of tokens to a layer, those of similar lengths at once."""

    def __init__(self, starts: Sequence[int], lengths: Sequence[int], device: torch.device):
        fields = torch.tensor([starts, lengths], dtype=torch.long).view(2, -1)
        # One token, as of a sequence that decodes, takes another way than more.
        octaves = [(-(-length // CHUNK) - 1).bit_length() if length > 1 else -1 for length in lengths]
        self.runs: list[Runs] = []
        for octave in sorted(set(octaves)):
            numbers_N = torch.tensor([n for n, other in enumerate(octaves) if other == octave])
            starts_N, lengths_N = fields[:, numbers_N]
            offsets_L = torch.arange(int(lengths_N.max()))
            inside_NL = offsets_L < lengths_N[:, None]
            tokens_NL = torch.where(inside_NL, starts_N[:, None] + offsets_L, 0)
            self.runs.append(Runs(*(x.to(device) for x in (numbers_N, tokens_NL, inside_NL, lengths_N))))
        self.place_T = torch.cat([runs.tokens_NL[runs.inside_NL] for runs in self.runs]).argsort()
        self.order = torch.cat([runs.numbers_N for runs in self.runs]).argsort()

    def __call__(self, advance: Advance, inputs: Sequence[Tensor], start: State | None) -> tuple[Tensor, State]:
        """Feed all runs, of which nothing or `start` is known, to `advance`.

        Returns the outputs in the order of T, and the states at the ends of the runs in their order.
        """
        outputs, ends = [], []
        for runs in self.runs:
            known = None if start is None else State(*(x[runs.numbers_N] for x in start))
            out_NL, end = advance(known, runs.lengths_N, *(runs.gather(x) for x in inputs))
            outputs.append(out_NL[runs.inside_NL])
            ends.append(end)
        if len(ends) == 1:  # as always when all sequences decode: large states are not copied
            return outputs[0][self.place_T], ends[0]
        return torch.cat(outputs)[self.place_T], State(*(torch.cat(x)[self.order] for x in zip(*ends, strict=True)))


class StateCache:
    """Keeps the states of running sequences in slots, and copies of those at the ends of pages, by page.

    There must be `count_slots` of them. The copy that was used least lately makes place.
    """

    def __init__(self, sizes: StateSizes, slots: int, dtype: torch.dtype, device: torch.device):
        self.sizes, self.slots, self.dtype, self.device = sizes, slots, dtype, device
        self._rows = {layer: row for row, layer in enumerate(sizes.layers)}
        self._free = list(range(slots))[::-1]
        self._copies: OrderedDict[int, int] = OrderedDict()

    @cached_property
    def tensors(self) -> State:
        """Allocate all slots when they are first used: [layers, slots, ...] each."""
        shape = len(self.sizes.layers), self.slots
        return State(
            allocate_zeros((*shape, *self.sizes.recent_WC), self.dtype, self.device),
            allocate_zeros((*shape, *self.sizes.memory_HDE), torch.float32, self.device),
        )

    def free_memory(self) -> None:
        """Free the slots; the next use allocates them again. Nobody may hold one."""
        self.__dict__.pop("tensors", None)

    def reset(self) -> None:
        """Free all slots, and forget what lay there."""
        self._copies.clear()
        self._free = list(range(self.slots))[::-1]
        self.free_memory()  # weights that were NaN may have left NaN

    def has_copy(self, page: int) -> bool:
        return page in self._copies

    def take(self, page: int | None) -> int:
        """Give a sequence a slot. It begins with the copy at the end of `page`, or with nothing known."""
        if page is not None:
            self._copies.move_to_end(page)
        slot = self._find_slot()
        for tensor in self.tensors:
            tensor[:, slot] = 0 if page is None else tensor[:, self._copies[page]]
        return slot

    def copy(self, slot: int, page: int) -> None:
        """Keep a copy of the state in `slot`, which is that at the end of `page`."""
        if page not in self._copies:
            self._copies[page] = place = self._find_slot()
            for tensor in self.tensors:
                tensor[:, place] = tensor[:, slot]

    def drop(self, slot: int) -> None:
        """End a sequence's hold."""
        self._free.append(slot)

    def forget(self, page: int) -> None:
        """Forget the copy at the end of `page`, if there is one."""
        if (slot := self._copies.pop(page, None)) is not None:
            self._free.append(slot)

    def forget_all(self) -> None:
        for page in list(self._copies):
            self.forget(page)

    def read(self, layer: int, slots_N: Tensor) -> State:
        row = self._rows[layer]
        return State(*(tensor[row].index_select(0, slots_N) for tensor in self.tensors))

    def write(self, layer: int, slots_N: Tensor, state: State) -> None:
        row = self._rows[layer]
        for tensor, values in zip(self.tensors, state, strict=True):
            tensor[row].index_copy_(0, slots_N, values.to(tensor.dtype))

    def _find_slot(self) -> int:
        if not self._free:
            self.forget(next(iter(self._copies)))
        return self._free.pop()
