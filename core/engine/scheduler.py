"""Which requests run next: waiting ones are prefilled as soon as a slot is free, otherwise all running ones decode.

Invariant: `running[i]` owns slot i. Each slot holds a whole sequence (prompt plus new tokens), so nothing running is
ever evicted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from core.engine.cache import PrefixStore, SlotCache
from core.types import Completion, FinishReason, Sampling


@dataclass(eq=False)
class Request:
    """One call on its way through the engine."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    session: str | None = None
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    cached_tokens: int = 0
    completion: Completion | None = None

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt_ids, *self.output_ids]

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    def finish(self, reason: FinishReason, weight_version: str) -> None:
        self.completion = Completion(
            tuple(self.output_ids), tuple(self.logprobs), reason, weight_version, self.cached_tokens
        )


class Scheduler:
    """Queues and slots. `prefill_budget` bounds the tokens of one prefill step (one longer prompt runs alone)."""

    def __init__(self, cache: SlotCache, prefixes: PrefixStore, prefill_budget: int):
        self.cache, self.prefixes, self.prefill_budget = cache, prefixes, prefill_budget
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def admit(self) -> list[tuple[Request, int]]:
        """Move waiting requests into slots; returns them with the number of tokens already in their slot.

        A request whose next block is being computed by an earlier one of this very step waits one step and then finds
        it in the store: that is how a prompt shared by a group is prefilled once.
        """
        admitted: list[tuple[Request, int]] = []
        in_flight: set[tuple[int, ...]] = set()
        postponed: list[Request] = []
        budget = self.prefill_budget
        while self.waiting and len(self.running) < self.cache.slots:
            request = self.waiting.popleft()
            tokens = request.tokens
            blocks = self.prefixes.match(tokens)
            missing = self.prefixes.missing_key(tokens, len(blocks))
            if missing and missing in in_flight:
                postponed.append(request)
                continue
            cost = len(tokens) - len(blocks) * self.prefixes.block_size
            if admitted and cost > budget:
                self.waiting.appendleft(request)
                break
            budget -= cost
            in_flight.add(missing)
            cached = self.prefixes.load(blocks, slot=len(self.running))
            self.running.append(request)
            admitted.append((request, cached))
        self.waiting.extendleft(reversed(postponed))
        return admitted

    def release(self, request: Request) -> None:
        """Free the slot of `request`; the last running sequence moves into the gap."""
        slot = self.running.index(request)
        last = self.running.pop()
        if last is not request:
            self.cache.move(len(self.running), slot, last.length)
            self.running[slot] = last

    def preempt_all(self) -> None:
        """Send every running request back to the head of the queue; its tokens so far are computed anew."""
        self.waiting.extendleft(reversed(self.running))
        self.running.clear()

    def remove(self, request: Request) -> None:
        """Take `request` out of the queue or of its slot; an `admit` that failed may have left it in neither."""
        if request in self.running:
            self.release(request)
        elif request in self.waiting:
            self.waiting.remove(request)
