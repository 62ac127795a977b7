"""Chooses what the next step computes: one token of each sequence that decodes, and parts of the prompts that wait.

A running request holds pages for all its tokens (prompt and new ones), so it is never evicted for lack of memory.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import groupby

from core.engine.cache import PagedCache
from core.types import Completion, FinishReason, Sampling

GATHER = 8
"""Says for how many sequences that decode one prompt is enough to be prefilled at once."""


@dataclass(eq=False)
class Request:
    """Tracks one call on its way through the engine.

    While it runs, it holds `pages`, and the keys and values of its first `computed` tokens lie there. Layers with
    states have theirs in `slot`, and its prefill halts at `stops`, where these are copied; `copied` is the last page of
    its completion at whose end they were. `cached_tokens` counts the tokens of the prompt that other requests had
    computed. `versions` names the version of the weights that sampled each token. `completion` is set at the end.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    session: str | None = None
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    slot: int = 0
    stops: tuple[int, ...] = ()
    copied: int | None = None
    computed: int = 0
    cached_tokens: int = 0
    versions: list[str] = field(default_factory=list)
    completion: Completion | None = None

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt_ids, *self.output_ids]

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def max_length(self) -> int:
        """Count the tokens that it has at most, prompt and new ones."""
        return len(self.prompt_ids) + self.sampling.max_new_tokens

    @property
    def decodes(self) -> bool:
        """Whether only the token that was sampled last has to be computed."""
        return bool(self.output_ids) and self.computed == self.length - 1

    def add_token(self, token: int, logprob: float, weight_version: str) -> None:
        self.output_ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(weight_version)

    def finish(self, reason: FinishReason, weight_version: str) -> None:
        """Make the completion. `weight_version` is that of the engine, for a request without a token."""
        runs = [(version, len(list(run))) for version, run in groupby(self.versions)]
        *earlier, (last, _) = runs or [(weight_version, 0)]
        self.completion = Completion(
            tuple(self.output_ids), tuple(self.logprobs), reason, last, self.cached_tokens, tuple(earlier)
        )


class Scheduler:
    """Moves requests between the waiting queue and the running ones, of which there are at most `max_num_seqs`.

    `max_prefill_tokens` bounds the prompt tokens of one step. A longer prompt is prefilled in parts. With `patience`
    prompts wait up to so many steps, until there is one for every `GATHER` sequences that decode.
    """

    def __init__(self, cache: PagedCache, max_num_seqs: int, max_prefill_tokens: int, patience: int = 0):
        self.cache = cache
        self.max_num_seqs = max_num_seqs
        self.max_prefill_tokens = max_prefill_tokens
        self.patience = patience
        self._waited = 0
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.cached_tokens = 0
        """Counts the tokens that requests shared when they were admitted."""

    def schedule(self) -> tuple[list[Request], list[tuple[Request, int]]]:
        """Admit waiting requests; return those that decode, and those that prefill with their numbers of tokens.

        A request may need a page that an earlier one is about to compute. It then waits, and finds the page when it has
        a name: that is how a prompt shared by a group is prefilled once.
        """
        decode = [request for request in self.running if request.decodes]
        # What is computed in part goes first: one prompt, or more that have stops.
        budget = self.max_prefill_tokens
        prefill: list[tuple[Request, int]] = []
        for request in self.running:
            if not request.decodes and (count := _count_next(request, budget)):
                prefill.append((request, count))
                budget -= count
        if decode and not prefill and self._waited < self.patience and GATHER * len(self.waiting) < len(decode):
            self._waited += bool(self.waiting)
            return decode, []
        # Prefixes whose last page is about to be computed.
        in_flight = {self.cache.missing_prefix(request.tokens, request.computed) for request, _ in prefill}
        postponed = 0  # the requests at the head of the queue that stay there
        no_pages = False
        while budget > 0 and postponed < len(self.waiting) and len(self.running) < self.max_num_seqs:
            request = self.waiting[postponed]
            tokens = request.tokens
            shared = self.cache.match(tokens)
            computed = len(shared) * self.cache.page_size
            missing = self.cache.missing_prefix(tokens, computed)
            if missing and missing in in_flight:
                postponed += 1
                continue
            cost = len(tokens) - computed
            fits = cost <= budget or not prefill  # only the first prompt of a step is cut
            pages = self.cache.hold(shared, request.max_length) if fits else None
            if pages is None:
                no_pages = fits
                break
            del self.waiting[postponed]
            request.pages, request.computed = pages, computed
            if self.cache.states is not None:
                request.slot = self.cache.states.take(shared[-1] if shared else None)
                request.stops = self.cache.find_stops(tokens)
            if not request.output_ids:  # what is prefilled again is more than the prompt, and was computed here
                request.cached_tokens = computed
            self.cached_tokens += computed
            self.running.append(request)
            prefill.append((request, _count_next(request, budget)))
            budget -= cost
            in_flight.add(missing)
        # What waits for this step alone has waited: it goes on in the next one.
        full = no_pages or len(self.running) == self.max_num_seqs
        self._waited = self.patience if self.waiting and not full else 0
        return decode, prefill

    def preempt_all(self) -> None:
        """Preempt every running request: it goes back to the head of the queue and is prefilled anew."""
        for request in self.running:
            self._release(request)
        self.waiting.extendleft(reversed(self.running))
        self.running.clear()

    def remove(self, request: Request) -> None:
        """Take `request` out of the queue or the running ones; a step that failed may have left it in neither."""
        if request in self.running:
            self.running.remove(request)
            self._release(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def drop_all(self) -> None:
        """Forget every request and what the cache holds, in whatever state a failed step has left them."""
        self.waiting.clear()
        self.running.clear()
        self.cache.reset()

    def _release(self, request: Request) -> None:
        self.cache.release(request.pages)
        if self.cache.states is not None:
            self.cache.states.drop(request.slot)
        request.pages, request.computed, request.copied = [], 0, None


def _count_next(request: Request, budget: int) -> int:
    """Count the tokens that a step prefills: at most `budget`, and none behind the next stop."""
    ends = [request.length, request.computed + budget, *(stop for stop in request.stops if stop > request.computed)]
    return min(ends) - request.computed
