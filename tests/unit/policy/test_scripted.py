"""ScriptedPolicy ends where a real policy would; a stop text is found at the token that completes it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.policy.base import PolicyError, completes_a_stop
from core.policy.scripted import RecordedCall, ScriptedPolicy
from core.types import Sampling


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


ALPHABET = "ab>/é"


def decode_bytes(token_ids: Sequence[int], vocabulary: Sequence[bytes]) -> str:
    """Decode like byte-level BPE: a character may be spread over several tokens."""
    return b"".join(vocabulary[i] for i in token_ids).decode(errors="replace")


@given(
    text=st.text(ALPHABET, max_size=12),
    stops=st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.sets(st.integers(1, 23)),
)
def test_it_is_seen_at_its_last_token_and_not_before(text: str, stops: list[str], cuts: set[int]) -> None:
    data = text.encode()
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    vocabulary = [data[a:b] for a, b in pairwise(places) if a < b]

    def decode(token_ids: Sequence[int]) -> str:
        return decode_bytes(token_ids, vocabulary)

    for end in range(1, len(vocabulary) + 1):
        said = b"".join(vocabulary[:end])
        expected = any(stop.encode() in said for stop in stops)
        assert completes_a_stop(range(end), stops, decode) == expected
        if expected:
            break


def test_what_stood_there_before_is_not_read_again() -> None:
    asked: list[int] = []

    def decode(token_ids: Sequence[int]) -> str:
        asked.append(len(token_ids))
        return "x" * len(token_ids)

    assert not completes_a_stop(range(10_000), ["</s>"], decode)
    assert asked == [4]
