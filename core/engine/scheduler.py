"""Chooses what runs next: waiting requests are prefilled as soon as a slot is free; otherwise all running ones decode.

Invariant: `running[i]` owns slot i. Each slot has room for a whole sequence (prompt plus new tokens), so a running
request is never evicted for lack of memory.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from core.engine.cache import PrefixStore, SlotCache
from core.types import Completion, FinishReason, Sampling


@dataclass(eq=False)
class Request:
    """Tracks one call on its way through the engine.

    `cached_tokens` counts the tokens found in the prefix store, over all its prefills. `versions` counts, in order, the
    tokens that each version of the weights sampled. `completion` is set at the end.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    session: str | None = None
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    cached_tokens: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    completion: Completion | None = None

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt_ids, *self.output_ids]

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    def add_token(self, token: int, logprob: float, weight_version: str) -> None:
        self.output_ids.append(token)
        self.logprobs.append(logprob)
        self.versions[weight_version] = self.versions.get(weight_version, 0) + 1

    def finish(self, reason: FinishReason, weight_version: str) -> None:
        """Make the completion. `weight_version` is that of the engine, for a request without a token."""
        *earlier, (last, _) = self.versions.items() or [(weight_version, 0)]
        self.completion = Completion(
            tuple(self.output_ids), tuple(self.logprobs), reason, last, self.cached_tokens, tuple(earlier)
        )


class Scheduler:
    """Moves requests between the waiting queue and the slots.

    `max_prefill_tokens` bounds the tokens of one prefill step; a longer prompt is prefilled alone.
    """

    def __init__(self, cache: SlotCache, prefixes: PrefixStore, max_prefill_tokens: int):
        self.cache = cache
        self.prefixes = prefixes
        self.max_prefill_tokens = max_prefill_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def admit(self) -> list[tuple[Request, int]]:
        """Move waiting requests into slots and return them, each with the number of tokens already in its slot.

        A request may need a block that an earlier one of this very step computes. It then waits one step and finds the
        block in the store: that is how a prompt shared by a group is prefilled once.
        """
        admitted: list[tuple[Request, int]] = []
        in_flight: set[tuple[int, ...]] = set()  # prefixes that the admitted requests are about to store
        postponed: list[Request] = []
        budget = self.max_prefill_tokens
        while self.waiting and len(self.running) < self.cache.slots:
            request = self.waiting.popleft()
            tokens = request.tokens
            blocks = self.prefixes.match(tokens)
            missing = self.prefixes.missing_prefix(tokens, len(blocks))
            if missing and missing in in_flight:
                postponed.append(request)
                continue
            # The cached prefix is copied; only what follows it is computed.
            cost = len(tokens) - len(blocks) * self.prefixes.block_size
            if admitted and cost > budget:
                self.waiting.appendleft(request)
                break
            budget -= cost
            in_flight.add(missing)
            cached = self.prefixes.load(blocks, slot=len(self.running))  # the slot that append makes its own
            self.running.append(request)
            admitted.append((request, cached))
        self.waiting.extendleft(reversed(postponed))  # back to the head of the queue, in their order
        return admitted

    def release(self, request: Request) -> None:
        """Free the slot of `request`; the last running sequence moves into the gap, so slots stay 0..n-1."""
        slot = self.running.index(request)
        last = self.running.pop()
        if last is not request:
            # After the pop, len(self.running) is the slot that `last` owned.
            self.cache.move(len(self.running), slot, last.length)
            self.running[slot] = last

    def preempt_all(self) -> None:
        """Preempt every running request: it goes back to the head of the queue and is prefilled anew."""
        self.waiting.extendleft(reversed(self.running))
        self.running.clear()

    def remove(self, request: Request) -> None:
        """Take `request` out of the queue or of its slot; an `admit` that failed may have left it in neither."""
        if request in self.running:
            self.release(request)
        elif request in self.waiting:
            self.waiting.remove(request)
