"""Whatever is submitted, stepped, aborted or preempted in whatever order: pages keep their owners, nothing is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from core.engine.cache import PagedCache
from core.engine.scheduler import Request, Scheduler
from core.engine.states import State, StateSizes, count_slots
from core.types import Sampling
from tests.unit.conftest import MODEL_CONFIG, compute, count_idle, read_stamps, stamps

SEQUENCES, PAGES, PAGE, BUDGET = 3, 12, 4, 10
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=16).map(tuple)


class PagesKeepTheirOwners(RuleBasedStateMachine):
    """The scheduler under an engine that writes stamps where keys and values go."""

    config = MODEL_CONFIG

    def __init__(self) -> None:
        super().__init__()
        slots = count_slots(SEQUENCES)
        self.cache = PagedCache(self.config, PAGES * PAGE, PAGE, torch.float32, torch.device("cpu"), slots)
        self.scheduler = Scheduler(self.cache, SEQUENCES, BUDGET)
        self.live: list[Request] = []
        self.submitted = 0
        self.ended: Counter[str] = Counter()

    @rule(prompt=PROMPTS, budget=st.integers(1, 6))
    def submit(self, prompt: tuple[int, ...], budget: int) -> None:
        request = Request(f"r{self.submitted}", prompt, Sampling(max_new_tokens=budget), seed=0)
        self.submitted += 1
        self.live.append(request)
        self.scheduler.waiting.append(request)

    @precondition(lambda self: self.live)
    @rule()
    def step(self) -> None:
        before, queue = list(self.scheduler.running), list(self.scheduler.waiting)
        decode, prefill = self.scheduler.schedule()
        assert decode or prefill
        # Each running request computes something, and keeps its place among the running ones.
        assert self.scheduler.running == [*before, *(r for r, _ in prefill if r not in before)]
        waits = [r for r in self.scheduler.running if r not in (*decode, *(r for r, _ in prefill))]
        assert not waits or any(r.stops for r, _ in prefill)
        counts = [count for _, count in prefill]
        assert all(counts)
        assert sum(counts) <= BUDGET
        ends = [(r, r.computed + count) for r, count in prefill]
        assert len([r for r, end in ends if end < r.length and end not in r.stops]) <= 1
        if not before:
            assert prefill[0][0] is queue[0]  # nothing waits for ever
        for request, count in [*((request, 1) for request in decode), *prefill]:
            start = request.computed
            assert torch.equal(read_stamps(self.cache, request.pages, start), stamps(request.tokens)[:start])
            request.computed += count
            compute(self.cache, request.pages, request.tokens[: request.computed], start)
            self.advance(request, start)
        for request, _ in prefill:
            page = self.cache.name(request.tokens[: request.computed], request.pages)
            if self.cache.states is not None and request.computed in request.stops:
                self.cache.states.copy(request.slot, page)
        for request in list(self.scheduler.running):
            if request.computed == request.length:
                request.output_ids.append(len(request.output_ids) % 2)
                if len(request.output_ids) == request.sampling.max_new_tokens:
                    self.end(request)

    def advance(self, request: Request, start: int) -> None:
        """Read the state of the first `start` tokens, and write that of all that are computed."""
        if (states := self.cache.states) is not None:
            slot_N = torch.tensor([request.slot])
            known = stamps(request.tokens[:start])[-1:] if start else torch.zeros(1)
            assert states.read(0, slot_N).memory_NHDE.flatten() == known
            now = stamps(request.tokens[: request.computed])[-1:]
            states.write(0, slot_N, State(torch.zeros(1, 1, 1), now.view(1, 1, 1, 1)))

    @precondition(lambda self: self.live)
    @rule(choice=st.integers(0, 1 << 16))
    def abort(self, choice: int) -> None:
        self.end(self.live[choice % len(self.live)])

    @rule()
    def new_weights(self) -> None:
        order = [*self.scheduler.running, *self.scheduler.waiting]
        self.scheduler.preempt_all()
        self.cache.forget()
        self.cache.kv.zero_()
        assert list(self.scheduler.waiting) == order

    @invariant()
    def running_requests_own_their_pages(self) -> None:
        assert len(self.scheduler.running) <= SEQUENCES
        if (states := self.cache.states) is not None:
            slots = [request.slot for request in self.scheduler.running]
            assert sorted([*slots, *states._free, *states._copies.values()]) == list(range(states.slots))
        held = {page for request in self.scheduler.running for page in request.pages}
        assert count_idle(self.cache) == PAGES - len(held)
        for request in self.scheduler.running:
            written = stamps(request.tokens[: request.computed])
            assert torch.equal(read_stamps(self.cache, request.pages, request.computed), written)

    @invariant()
    def every_live_request_is_in_one_place(self) -> None:
        places = Counter(r.request_id for r in (*self.scheduler.running, *self.scheduler.waiting))
        assert places == Counter(request.request_id for request in self.live)

    def teardown(self) -> None:
        for _ in range(100 * (len(self.live) + 1)):
            if self.live:
                self.step()
        assert not self.live
        assert not self.scheduler.running
        assert self.ended == Counter(f"r{i}" for i in range(self.submitted))

    def end(self, request: Request) -> None:
        self.scheduler.remove(request)
        self.live.remove(request)
        self.ended[request.request_id] += 1


PagesKeepTheirOwners.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPagesKeepTheirOwners = PagesKeepTheirOwners.TestCase


class StatesKeepTheirOwners(PagesKeepTheirOwners):
    """The same, where the first of two layers keeps a state."""

    config = replace(MODEL_CONFIG, num_layers=2, states=StateSizes((0,), (1, 1), (1, 1, 1)))


def test_states_keep_their_owners() -> None:
    few = settings(max_examples=60, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(StatesKeepTheirOwners, settings=few)


def test_prompts_wait_for_each_other_only_when_they_share_a_page():
    cache = PagedCache(MODEL_CONFIG, 400, PAGE, torch.float32, torch.device("cpu"))
    scheduler = Scheduler(cache, 8, max_prefill_tokens=100)
    prompts = [(1,), (2,), (1, 2), (5,) * 9, (6,) * 9, (5,) * 10, (5,) * 4]
    sampling = Sampling(max_new_tokens=4)
    scheduler.waiting.extend(Request(f"r{i}", prompt, sampling, seed=0) for i, prompt in enumerate(prompts))
    _, prefill = scheduler.schedule()
    assert [request.request_id for request, _ in prefill] == ["r0", "r1", "r2", "r3", "r4", "r6"]
    assert [request.request_id for request in scheduler.waiting] == ["r5"]


def test_a_long_prompt_is_computed_in_parts_while_others_decode():
    cache = PagedCache(MODEL_CONFIG, 400, PAGE, torch.float32, torch.device("cpu"))
    scheduler = Scheduler(cache, 8, max_prefill_tokens=10)
    running = Request("decoding", (1, 2), Sampling(max_new_tokens=9), seed=0, output_ids=[3])
    requests = [Request(f"r{i}", (i,) * n, Sampling(max_new_tokens=1), seed=0) for i, n in enumerate((25, 6))]
    running.pages, running.computed = cache.hold([], 11) or [], 2
    scheduler.running.append(running)
    scheduler.waiting.extend(requests)
    seen = []
    for _ in range(4):
        decode, prefill = scheduler.schedule()
        assert decode == [running]
        seen.append([(request.request_id, count) for request, count in prefill])
        for request, count in prefill:
            request.computed += count
            if request.computed == request.length:
                scheduler.remove(request)
    assert seen == [[("r0", 10)], [("r0", 10)], [("r0", 5)], [("r1", 6)]]


def test_prompts_gather_while_many_sequences_decode():
    cache = PagedCache(MODEL_CONFIG, 4000, PAGE, torch.float32, torch.device("cpu"))
    scheduler = Scheduler(cache, 32, max_prefill_tokens=100, patience=3)

    def submit(name: str, prompt: tuple[int, ...] = (1, 2)) -> None:
        scheduler.waiting.append(Request(name, prompt, Sampling(max_new_tokens=90), seed=0))

    def step() -> list[str]:
        decode, prefill = scheduler.schedule()
        for request, count in [*((request, 1) for request in decode), *prefill]:
            request.computed += count
            request.output_ids.append(1)
            cache.name(request.prompt_ids, request.pages)
        return [request.request_id for request, _ in prefill]

    for number in range(17):
        submit(f"r{number}")
    assert len(step()) == 17  # nobody decodes yet
    assert [step() for _ in range(5)] == [[]] * 5
    submit("alone")
    assert [step() for _ in range(4)] == [[], [], [], ["alone"]]  # for no longer than `patience`
    submit("first")
    assert step() == []
    for number in range(2):
        submit(f"more{number}")
    assert step() == ["first", "more0", "more1"]  # 3 * GATHER are more than the 18 that decode
    for number in range(3):
        submit(f"long{number}", (number, *range(60)))
    assert [step() for _ in range(3)] == [["long0"], ["long1"], ["long2"]]  # a step computes 100 tokens: no new wait
    for number in range(3):
        submit(f"same{number}", (9,) * 9)
    assert [step() for _ in range(2)] == [["same0"], ["same1", "same2"]]  # they waited for its pages alone
