"""The KV cache: pages of a few tokens, counted by the sequences that hold them and found again by their tokens.

A sequence holds a list of pages, which need not be neighbours. A page that is full and computed gets a name: all tokens
up to its end. Later sequences that begin with these tokens hold the same page, so a shared prefix lies in memory once
and is never copied. A page that nobody holds keeps its name until it is the least recently used and its place is
needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from core.engine.heap import allocate_zeros
from core.engine.model import ModelConfig
from core.engine.states import StateCache

GRAIN = 16
"""Attention pads queries and keys to multiples of this number. The CPU's kernels add up in an order that depends on the
remainder by their width (8 numbers with AVX2, 16 with AVX-512), so without it a sequence's rounding would
depend on its neighbours."""

PageName = tuple[int, tuple[int, ...]]
"""Names a page by the number of the page before it and its own tokens, so that equal names mean equal prefixes."""

NULL_PAGE = 0
"""Names the null page, which pads lists of pages. No sequence holds it, and no result depends on what lies there."""


def round_up(count: int) -> int:
    """Return the next multiple of GRAIN."""
    return -(-count // GRAIN) * GRAIN


class PagedCache:
    """Keeps the keys and values of `tokens` tokens, in pages of `page_size`, and states in `slots`, if layers have any.

    `kv` is [2 (keys, values), layers, page_size * (pages + 1), K, D]: page p begins at place p * page_size. Place 0
    begins the null page.
    """

    def __init__(
        self,
        config: ModelConfig,
        tokens: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        slots: int = 0,
    ):
        self.config = config
        self.rows = {layer: row for row, layer in enumerate(config.attending_layers)}
        """Leads from the number of a layer that attends to its place in `kv`."""
        self.states = None if config.states is None else StateCache(config.states, slots, dtype, device)
        self.page_size = page_size
        self.pages = self.count_pages(tokens)
        self.dtype = dtype
        self.device = device
        self.reset()

    def reset(self) -> None:
        """Free all pages and forget all names."""
        if self.device.type == "cpu":
            self.__dict__.pop("kv", None)  # weights that were NaN may have left NaN in it
        if self.states is not None:
            self.states.reset()
        self._holders = [0] * (self.pages + 1)
        # Pages that nobody holds; the next one to be given away comes first.
        self._idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, self.pages + 1))
        self.forget()

    def count_pages(self, tokens: int) -> int:
        """Return how many pages hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    @cached_property
    def kv(self) -> Tensor:
        """Allocate the pages when they are first used, as zeros: attention multiplies the padding."""
        places = (self.pages + 1) * self.page_size
        shape = (2, len(self.rows), places, self.config.num_kv_heads, self.config.head_dim)
        return allocate_zeros(shape, self.dtype, self.device)

    def free_memory(self) -> None:
        """Free `kv` and forget all names; the next use allocates it again. Nobody may hold a page."""
        self.forget()
        self.__dict__.pop("kv", None)
        if self.states is not None:
            self.states.free_memory()

    def forget(self) -> None:
        """Forget all names: what the pages hold belongs to other weights. Sequences keep the pages that they hold."""
        self._named: dict[PageName, int] = {}
        self._names: dict[int, PageName] = {}
        # Each naming of a page gets a new number. When the page is given away, the names after that number can no
        # longer be reached, and their pages age.
        self._numbers = [0] * (self.pages + 1)
        self._next_number = 1
        if self.states is not None:
            self.states.forget_all()

    def match(self, tokens: Sequence[int]) -> list[int]:
        """Find the pages of the longest prefix of `tokens` that a sequence can go on from.

        At least one token is left to compute. With states, a copy of them is needed at the end.
        """
        pages = self._match_named(tokens)
        while self.states is not None and pages and not self.states.has_copy(pages[-1]):
            pages.pop()
        return pages

    def find_stops(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return after how many tokens of a prompt the states are copied.

        That is where it parts from an earlier one, and at the end of its last page, where others of its group begin.
        """
        if self.states is None:
            return ()
        return len(self._match_named(tokens)) * self.page_size, (len(tokens) - 1) // self.page_size * self.page_size

    def _match_named(self, tokens: Sequence[int]) -> list[int]:
        pages: list[int] = []
        before = NULL_PAGE
        # `start` stops before the page that ends in the last token: that token's logits are needed.
        for start in range(0, len(tokens) - self.page_size, self.page_size):
            page = self._named.get(self._make_name(before, tokens, start))
            if page is None:
                break
            pages.append(page)
            before = page
        return pages

    def hold(self, shared: Sequence[int], length: int) -> list[int] | None:
        """Give a sequence of up to `length` tokens its pages, of which it shares the first ones with others.

        Returns None, and changes nothing, when there are too few pages that nobody holds.
        """
        new = self.count_pages(length) - len(shared)
        if new > len(self._idle) - sum(not self._holders[page] for page in shared):
            return None
        for page in shared:
            self._idle.pop(page, None)
        pages = [*shared, *(self._take_oldest() for _ in range(new))]
        for page in pages:
            self._holders[page] += 1
        return pages

    def name(self, tokens: Sequence[int], pages: Sequence[int]) -> int:
        """Name the full pages of a sequence whose `tokens` are computed; of equal prefixes, one gets the name.

        Returns the page that has the name of the last one.
        """
        before = NULL_PAGE
        for page, start in zip(pages, range(0, len(tokens) - self.page_size + 1, self.page_size), strict=False):
            name = self._make_name(before, tokens, start)
            before = self._named.setdefault(name, page)
            if before == page and self._names.get(page) != name:
                self._take_name(page)
                self._names[page] = name
                self._numbers[page] = self._next_number
                self._next_number += 1
        return before

    def release(self, pages: Sequence[int]) -> None:
        """End a sequence's hold. Its nameless pages are given away first, and its last named one before its first."""
        for page in reversed(pages):
            self._holders[page] -= 1
            if not self._holders[page]:
                self._idle[page] = None
                if page not in self._names:
                    self._idle.move_to_end(page, last=False)

    def missing_prefix(self, tokens: Sequence[int], computed: int) -> tuple[int, ...]:
        """Return the tokens up to the end of the first full page that is not computed; nothing if there is none.

        A page that ends in the last token does not count: nobody waits for it.
        """
        end = (computed // self.page_size + 1) * self.page_size
        return tuple(tokens[:end]) if end < len(tokens) else ()

    def _make_name(self, before: int, tokens: Sequence[int], start: int) -> PageName:
        return self._numbers[before], tuple(tokens[start : start + self.page_size])

    def _take_name(self, page: int) -> None:
        name = self._names.pop(page, None)
        if name is not None:
            del self._named[name]
        if self.states is not None:
            self.states.forget(page)

    def _take_oldest(self) -> int:
        page, _ = self._idle.popitem(last=False)
        self._take_name(page)
        return page
