"""The KV cache: slots for the running sequences, and a store of prefix blocks that later prompts can start from.

A slot is one row of one tensor. The running sequences always occupy slots 0..n-1, so decode reads a plain slice and
gathers nothing. The prefix store keeps full blocks of tokens as a trie and evicts the least recently used one first. A
hit is copied into the new sequence's slot, which costs a fraction of computing it again.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from core.engine.model import ModelConfig

GRAIN = 16
"""Attention pads queries and keys to multiples of this number. The CPU's kernels add up in an order that depends on the
remainder by their width (8 numbers with AVX2, 16 with AVX-512), so without it a sequence would be rounded otherwise
beside a longer one than alone."""

BlockKey = tuple[int, tuple[int, ...]]
"""Names a block of the trie by its parent's node number and its own tokens."""

LARGE = 1 << 28
"""Sets the bytes from which a cache is worth the time that it takes to give freed memory back first."""


def return_freed_memory() -> None:
    """Give the memory that an update has freed back to the system; glibc keeps most of it for smaller tensors."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc alone has it
        trim(0)


def round_up(count: int) -> int:
    """Return the next multiple of GRAIN."""
    return -(-count // GRAIN) * GRAIN


def cache_bytes(config: ModelConfig, tokens: int, dtype: torch.dtype) -> int:
    """Return the bytes that the keys and values of `tokens` tokens take, in slots or in the prefix store."""
    return tokens * 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize


class SlotCache:
    """Keeps the keys and values of the running sequences in `kv`: [2 (keys, values), layers, slots, K, max_len, D]."""

    def __init__(self, config: ModelConfig, slots: int, max_len: int, dtype: torch.dtype, device: torch.device):
        self.config = config
        self.slots = slots
        self.max_len = max_len
        self.dtype = dtype
        self.device = device

    @cached_property
    def kv(self) -> Tensor:
        """Is allocated when it is first used."""
        return self.zeros(self.slots, round_up(self.max_len))

    def zeros(self, rows: int, length: int) -> Tensor:
        """Allocate keys and values for `rows` times `length` tokens: [2, layers, rows, K, length, D].

        On the CPU the pages that nobody writes to take no memory. They are zero, because what stands after the end of a
        sequence is multiplied with an attention of 0.
        """
        shape = (2, self.config.num_layers, rows, self.config.num_kv_heads, length, self.config.head_dim)
        # A step allocates in inference mode, but the tensor is also written to between steps.
        with torch.inference_mode(False):
            if self.device.type != "cpu":
                return torch.zeros(shape, dtype=self.dtype, device=self.device)
            size = math.prod(shape) * self.dtype.itemsize
            if size >= LARGE:
                return_freed_memory()
            # The system gives a page of zeros when it is first touched; torch.zeros would touch every page.
            pages = mmap.mmap(-1, size)
            return torch.frombuffer(pages, dtype=self.dtype).view(shape)

    def release(self) -> None:
        """Free `kv`; the next use allocates it again."""
        self.__dict__.pop("kv", None)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot over another."""
        self.kv[:, :, target, :, :length] = self.kv[:, :, source, :, :length]


class PrefixStore:
    """Keeps blocks of `block_size` tokens in a trie, each reached from its parent by its very tokens.

    So a hit is never a hash collision. Node numbers are never reused: when a parent is evicted, its children can no
    longer be reached, and age out. `pool` holds the blocks: [2 (keys, values), layers, blocks, K, block_size, D].
    """

    ROOT = 0

    def __init__(self, cache: SlotCache, blocks: int, block_size: int):
        self.cache = cache
        self.blocks = blocks
        self.block_size = block_size
        self.clear()

    @cached_property
    def pool(self) -> Tensor:
        return self.cache.zeros(self.blocks, self.block_size)

    def clear(self) -> None:
        # Each key leads to (node number, index of its block in `pool`); the least recently used key comes first.
        self._nodes: OrderedDict[BlockKey, tuple[int, int]] = OrderedDict()
        self._free = list(range(self.blocks))
        self._next_node = self.ROOT + 1

    def release(self) -> None:
        """Forget every block and free `pool`; the next use allocates it again."""
        self.clear()
        self.__dict__.pop("pool", None)

    def match(self, tokens: Sequence[int]) -> list[int]:
        """Find the pool blocks of the longest stored prefix of `tokens`; at least one token is left to compute."""
        chain: list[BlockKey] = []
        blocks: list[int] = []
        node = self.ROOT
        # `start` stops before the block that ends in the last token: that token's logits are needed.
        for start in range(0, len(tokens) - self.block_size, self.block_size):
            key = (node, tuple(tokens[start : start + self.block_size]))
            entry = self._nodes.get(key)
            if entry is None:
                break
            chain.append(key)
            node, block = entry
            blocks.append(block)
        self._touch(chain)
        return blocks

    def load(self, blocks: Sequence[int], slot: int) -> int:
        """Copy `blocks` to the start of `slot` and return the number of tokens copied."""
        length = len(blocks) * self.block_size
        if blocks:
            # [2, layers, n blocks, K, block_size, D] -> [2, layers, K, n * block_size, D]
            self.cache.kv[:, :, slot, :, :length] = self.pool[:, :, list(blocks)].transpose(2, 3).flatten(3, 4)
        return length

    def insert(self, tokens: Sequence[int], slot: int) -> None:
        """Store every full block of `tokens`, whose keys and values stand at the start of `slot`."""
        chain: list[BlockKey] = []
        new_blocks: list[int] = []
        new_starts: list[int] = []
        node = self.ROOT
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            key = (node, tuple(tokens[start : start + self.block_size]))
            entry = self._nodes.get(key)
            if entry is None:
                block = self._take_block(keep=chain)
                if block is None:
                    break
                entry = self._nodes[key] = (self._next_node, block)
                self._next_node += 1
                new_blocks.append(block)
                new_starts.append(start)
            chain.append(key)
            node = entry[0]
        self._touch(chain)
        if new_blocks:
            # Once one block is new, all that follow are new: they are one span of positions in the slot.
            first = new_starts[0]
            span = self.cache.kv[:, :, slot, :, first : first + len(new_blocks) * self.block_size]
            # [2, layers, K, n * block_size, D] -> [2, layers, n blocks, K, block_size, D]
            self.pool[:, :, new_blocks] = span.unflatten(3, (-1, self.block_size)).transpose(2, 3)

    def missing_prefix(self, tokens: Sequence[int], matched: int) -> tuple[int, ...]:
        """Return the tokens up to the end of the first block that is not stored; empty when no full block is missing.

        `matched` is the number of blocks that `match` found. A store without blocks will never hold the missing one, so
        it returns nothing to wait for.
        """
        end = (matched + 1) * self.block_size
        return tuple(tokens[:end]) if end < len(tokens) and self.blocks else ()

    def _take_block(self, keep: Sequence[BlockKey]) -> int | None:
        """Return a free block of the pool, evicting the least recently used one that is not in `keep`; None if none."""
        if self._free:
            return self._free.pop()
        oldest = next(iter(self._nodes), None)
        if oldest is None or oldest in keep:
            return None
        return self._nodes.pop(oldest)[1]

    def _touch(self, chain: Sequence[BlockKey]) -> None:
        for key in reversed(chain):  # the first block last: it ends up newest, so no child outlives its parent
            self._nodes.move_to_end(key)
