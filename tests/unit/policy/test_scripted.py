"""ScriptedPolicy ends where a real policy would, records its calls and raises what it is told to."""

from __future__ import annotations

import asyncio

import pytest

from core.policy.base import PolicyError
from core.policy.scripted import RecordedCall, ScriptedPolicy
from core.types import Sampling

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("budget", "stops", "expected"),
    [
        (9, (), ((1, 2, 3), "stop")),
        (3, (), ((1, 2, 3), "stop")),
        (2, (), ((1, 2), "length")),
        (9, (2,), ((1, 2), "stop")),
        (2, (2,), ((1, 2), "stop")),
        (1, (2,), ((1,), "length")),
    ],
)
async def test_ends_at_stop_id_or_budget(
    budget: int, stops: tuple[int, ...], expected: tuple[tuple[int, ...], str]
) -> None:
    policy = ScriptedPolicy(lambda prompt, sampling: [1, 2, 3], logprob=-1.0)
    completion = await policy.generate([7], Sampling(max_new_tokens=budget, stop_token_ids=stops))
    assert (completion.token_ids, completion.finish_reason) == expected
    assert set(completion.logprobs) == {-1.0}


async def test_records_calls_and_answers_by_prompt() -> None:
    policy = ScriptedPolicy(lambda prompt, sampling: (prompt[0] + 1,))
    sampling = Sampling(seed=3)
    assert (await policy.generate([7], sampling, session="s")).token_ids == (8,)
    assert policy.calls == [RecordedCall((7,), sampling, "s")]


async def test_raises_a_returned_exception() -> None:
    policy = ScriptedPolicy(lambda prompt, sampling: PolicyError("engine", "down"))
    with pytest.raises(PolicyError, match="down"):
        await policy.generate([7], Sampling())
    assert len(policy.calls) == 1


async def test_latency_can_be_cancelled() -> None:
    policy = ScriptedPolicy(lambda prompt, sampling: [1], latency=30)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(policy.generate([7], Sampling()), timeout=0.01)
    assert policy.cancelled == 1
