"""Whatever is submitted, stepped, aborted or preempted in whatever order: slots keep their owners, nothing is lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from core.engine.cache import PrefixStore, SlotCache
from core.engine.engine import Engine
from core.engine.model import ModelConfig
from core.engine.scheduler import Request, Scheduler
from core.types import Sampling

CONFIG = ModelConfig(8, 4, 4, 1, 1, 1, 1, 1e-6, 64, False, False, False, False, False, (1.0,), 1.0)
SLOTS, MAX_LEN, BLOCK, BUDGET = 3, 24, 4, 20
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=16).map(tuple)


def stamps(tokens: list[int]) -> torch.Tensor:
    """Stand for keys: each depends on all tokens up to it, as a real one does."""
    return torch.tensor([float(hash(tuple(tokens[: end + 1])) % 100_003) for end in range(len(tokens))])


class SlotsKeepTheirOwners(RuleBasedStateMachine):
    """The scheduler under an engine that writes stamps where keys and values go."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = SlotCache(CONFIG, SLOTS, MAX_LEN, torch.float32, torch.device("cpu"))
        self.prefixes = PrefixStore(self.cache, blocks=6, block_size=BLOCK)
        self.scheduler = Scheduler(self.cache, self.prefixes, BUDGET)
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
        running, had_room = list(self.scheduler.running), len(self.scheduler.running) < SLOTS
        queue = list(self.scheduler.waiting)
        admitted = self.scheduler.admit()
        assert bool(admitted) == (bool(queue) and had_room)
        assert self.scheduler.running == [*running, *(request for request, _ in admitted)]
        costs = [request.length - cached for request, cached in admitted]
        assert all(cost > 0 for cost in costs)
        assert sum(costs) <= BUDGET or len(costs) == 1
        for slot, (request, cached) in enumerate(admitted, start=len(running)):
            assert torch.equal(self.slot(slot)[:cached], stamps(request.tokens)[:cached])
            self.write(slot, request)
            self.prefixes.insert(request.tokens, slot)
        if not admitted:
            for slot, request in enumerate(running):
                self.write(slot, request)
        for request in [request for request, _ in admitted] or running:
            request.output_ids.append(len(request.output_ids) % 2)
            if len(request.output_ids) == request.sampling.max_new_tokens:
                self.end(request)

    @precondition(lambda self: self.live)
    @rule(choice=st.integers(0, 1 << 16))
    def abort(self, choice: int) -> None:
        self.end(self.live[choice % len(self.live)])

    @rule()
    def new_weights(self) -> None:
        order = [*self.scheduler.running, *self.scheduler.waiting]
        self.scheduler.preempt_all()
        self.prefixes.clear()
        self.cache.kv.zero_()
        assert list(self.scheduler.waiting) == order

    @invariant()
    def running_requests_own_their_slots(self) -> None:
        assert len(self.scheduler.running) <= SLOTS
        for slot, request in enumerate(self.scheduler.running):
            written = stamps(request.tokens[:-1])  # the last token has been sampled, not computed
            assert torch.equal(self.slot(slot)[: len(written)], written)

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

    def slot(self, number: int) -> torch.Tensor:
        return self.cache.kv[0, 0, number, 0, :, 0]

    def write(self, slot: int, request: Request) -> None:
        self.cache.kv[:, :, slot, 0, : request.length, 0] = stamps(request.tokens)

    def end(self, request: Request) -> None:
        self.scheduler.remove(request)
        self.live.remove(request)
        self.ended[request.request_id] += 1


SlotsKeepTheirOwners.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSlotsKeepTheirOwners = SlotsKeepTheirOwners.TestCase


def test_prompts_wait_for_each_other_only_when_they_share_a_block():
    cache = SlotCache(CONFIG, 8, MAX_LEN, torch.float32, torch.device("cpu"))
    scheduler = Scheduler(cache, PrefixStore(cache, blocks=6, block_size=BLOCK), max_prefill_tokens=100)
    prompts = [(1,), (2,), (1, 2), (5,) * 9, (6,) * 9, (5,) * 10, (5,) * 4]
    scheduler.waiting.extend(Request(f"r{i}", prompt, Sampling(), seed=0) for i, prompt in enumerate(prompts))
    assert [request.request_id for request, _ in scheduler.admit()] == ["r0", "r1", "r2", "r3", "r4", "r6"]
    assert [request.request_id for request in scheduler.waiting] == ["r5"]


ORDERS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 7)),
        st.tuples(st.just("step"), st.integers(1, 4)),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("new_weights"), st.just(0)),
    ),
    min_size=1,
    max_size=30,
)
_alone: dict[int, tuple[int, ...]] = {}


def call(number: int) -> tuple[list[int], Sampling, str | None]:
    """Eight calls: lengths differ, half share a long prefix, some have a session."""
    shared = list(range(20)) if number % 2 else []
    prompt = [*shared, *range(30 + number, 33 + 3 * number)]
    return prompt, Sampling(max_new_tokens=2 + number, seed=number), "s" if number % 3 == 0 else None


def tokens_alone(folder: Path, number: int) -> tuple[int, ...]:
    if number not in _alone:
        engine = Engine.from_pretrained(folder, device="cpu", max_model_len=64, kv_tokens=64)
        request = engine.submit(*call(number))
        while engine.has_work():
            engine.step()
        assert request.completion is not None
        _alone[number] = request.completion.token_ids
    return _alone[number]


@settings(max_examples=30, deadline=None)
@given(orders=ORDERS)
def test_each_request_ends_once_with_the_tokens_it_has_alone(qwen2, orders):
    engine = Engine.from_pretrained(qwen2, device="cpu", max_model_len=64, kv_tokens=64 * 3)
    numbers: dict[str, int] = {}
    ended: list[Request] = []
    for order, argument in orders:
        if order == "submit":
            numbers[engine.submit(*call(argument)).request_id] = argument
        elif order == "abort":
            aborted = engine.abort(f"r{argument}")
            ended += [aborted] if aborted else []
        elif order == "new_weights":
            engine.adopt_weights("0")  # the same ones, so that the tokens stay
        else:
            for _ in range(argument):
                ended += engine.step()
        stats = engine.stats()
        assert stats.num_running <= 3
        assert stats.num_running + stats.num_waiting + len(ended) == len(numbers)
    while engine.has_work():
        ended += engine.step()
    assert sorted(request.request_id for request in ended) == sorted(numbers)
    for request in ended:
        assert request.completion is not None
        expected = tokens_alone(qwen2, numbers[request.request_id])
        got = request.completion.token_ids
        assert got == expected[: len(got)]
        assert request.completion.finish_reason == "abort" or got == expected
