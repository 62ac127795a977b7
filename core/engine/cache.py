"""The KV budget: slots for the running sequences, and a store of prefixes that later prompts can start from.

Slots are rows of one tensor; the running sequences always occupy slots 0..n-1, so decoding reads a plain slice and
gathers nothing. The prefix store keeps full blocks of tokens as a trie, least recently used out first; a hit is copied
into the new sequence's slot, which costs a fraction of computing it again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch

from core.engine.model import ModelConfig

Key = tuple[int, tuple[int, ...]]
"""A block in the trie: its parent's node and its own tokens."""


class SlotCache:
    """Keys and values of the running sequences: [2, layers, slots, K, max_len, D]."""

    def __init__(self, config: ModelConfig, slots: int, max_len: int, dtype: torch.dtype, device: torch.device):
        self.slots, self.max_len = slots, max_len
        self.kv = torch.zeros(
            2, config.num_layers, slots, config.num_kv_heads, max_len, config.head_dim, dtype=dtype, device=device
        )

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot over another."""
        self.kv[:, :, target, :, :length] = self.kv[:, :, source, :, :length]


class PrefixStore:
    """Blocks of `block_size` tokens, each reached from its parent by its very tokens: a hit is never a collision.

    Node numbers are never reused: when a parent is evicted its children can no longer be reached and age out.
    """

    ROOT = 0

    def __init__(self, cache: SlotCache, blocks: int, block_size: int):
        self.cache, self.block_size = cache, block_size
        layers, kv_heads, head_dim = cache.kv.shape[1], cache.kv.shape[3], cache.kv.shape[5]
        self.pool = cache.kv.new_zeros(2, layers, blocks, kv_heads, block_size, head_dim)
        self.clear()

    def clear(self) -> None:
        self._nodes: OrderedDict[Key, tuple[int, int]] = OrderedDict()
        self._free = list(range(self.pool.shape[2]))
        self._next_node = self.ROOT + 1

    def match(self, tokens: Sequence[int]) -> list[int]:
        """Pool blocks that hold the longest stored prefix of `tokens`, always leaving at least one token to compute."""
        chain: list[Key] = []
        blocks: list[int] = []
        node = self.ROOT
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
        """Copy `blocks` to the start of `slot`; returns the number of tokens copied."""
        length = len(blocks) * self.block_size
        if blocks:
            self.cache.kv[:, :, slot, :, :length] = self.pool[:, :, list(blocks)].transpose(2, 3).flatten(3, 4)
        return length

    def insert(self, tokens: Sequence[int], slot: int) -> None:
        """Store every full block of `tokens`, whose keys and values stand at the start of `slot`."""
        chain: list[Key] = []
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
            first = new_starts[0]  # once one block is new, all that follow are
            span = self.cache.kv[:, :, slot, :, first : first + len(new_blocks) * self.block_size]
            self.pool[:, :, new_blocks] = span.unflatten(3, (-1, self.block_size)).transpose(2, 3)

    def missing_key(self, tokens: Sequence[int], matched: int) -> tuple[int, ...]:
        """The tokens up to the end of the first block that is not stored yet; empty when no full block is missing.

        A store without blocks never holds it, so that nobody waits for it.
        """
        end = (matched + 1) * self.block_size
        return tuple(tokens[:end]) if end < len(tokens) and self.pool.shape[2] else ()

    def _take_block(self, keep: Sequence[Key]) -> int | None:
        if self._free:
            return self._free.pop()
        oldest = next(iter(self._nodes), None)
        if oldest is None or oldest in keep:
            return None
        return self._nodes.pop(oldest)[1]

    def _touch(self, chain: Sequence[Key]) -> None:
        for key in reversed(chain):  # the root last, so that no child outlives its parent
            self._nodes.move_to_end(key)
