"""Every call becomes a Turn as it was sampled, under a seed of its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from core.policy.base import PolicyError
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import RolloutError
from core.rollout.turns import Turns
from core.types import Completion, Sampling

SAMPLING = Sampling(temperature=0.7, top_p=0.9, stop_token_ids=(9,), seed=5)


def echo() -> ScriptedPolicy:
    return ScriptedPolicy(lambda prompt, sampling: (*prompt, 9), logprob=-0.5)


async def test_a_call_becomes_a_turn_with_the_very_ids():
    policy, turns = echo(), Turns(SAMPLING, "conversation-1")
    written = await turns.ask(policy, "update", [1, 2], 8, trained=False)
    answer = await turns.ask(policy, "final", [3], 1)
    assert (written.token_ids, answer.token_ids, answer.finish_reason) == ((1, 2, 9), (3,), "length")
    recorded = [(t.role, t.prompt_ids, t.completion, t.trained) for t in turns.recorded]
    assert recorded == [("update", (1, 2), written, False), ("final", (3,), answer, True)]
    calls = [(call.sampling.max_new_tokens, call.session) for call in policy.calls]
    assert calls == [(8, "conversation-1"), (1, "conversation-1")]


async def test_a_turn_says_when_it_began_and_ended_also_in_a_branch():
    turns = Turns(Sampling())
    for each in (turns, turns.branch()):
        await asyncio.sleep(0.02)
        await each.ask(ScriptedPolicy(lambda *_: [5], latency=0.05), "act", [1], 4)
    (first, first_end), (second, second_end) = (turn.seconds for turn in turns.recorded)
    assert 0.02 <= first <= first_end - 0.05
    assert first_end + 0.02 <= second <= second_end - 0.05


async def test_calls_are_sampled_alike_under_other_seeds_and_again_the_same():
    seeds = []
    for _ in range(2):
        policy, turns = echo(), Turns(SAMPLING)
        for _ in range(3):
            await turns.ask(policy, "update", [1], 4)
        seeds.append([call.sampling.seed for call in policy.calls])
        assert {replace(call.sampling, seed=5, max_new_tokens=256) for call in policy.calls} == {SAMPLING}
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], SAMPLING.seed}) == 4
    policy = echo()
    await Turns(replace(SAMPLING, seed=None)).ask(policy, "update", [1], 4)
    assert policy.calls[0].sampling.seed is None


async def test_a_call_may_bring_its_own_sampling():
    policy, turns = echo(), Turns(SAMPLING)
    await turns.ask(policy, "executor", [1], 4, sampling=Sampling(temperature=0.0, seed=5))
    await turns.ask(policy, "planner", [1], 4)
    frozen, own = (call.sampling for call in policy.calls)
    assert (frozen.temperature, frozen.stop_token_ids, own.temperature) == (0.0, (), 0.7)
    assert frozen.seed != own.seed


async def test_an_aborted_call_fails_the_rollout_and_is_no_turn():
    class Aborting(ScriptedPolicy):
        async def generate(self, prompt_ids, sampling, session=None):
            return Completion((1,), (0.0,), "abort")

    turns = Turns(SAMPLING)
    with pytest.raises(RolloutError, match="call 0, of update") as failure:
        await turns.ask(Aborting(lambda prompt, sampling: ()), "update", [1], 4)
    assert failure.value.kind == "aborted"
    assert turns.recorded == []


async def test_a_call_without_a_completion_is_no_turn_and_the_next_has_another_seed():
    failures = [PolicyError("engine", "down"), None]
    policy = ScriptedPolicy(lambda prompt, sampling: failures.pop(0) or (9,))
    turns = Turns(SAMPLING)
    with pytest.raises(PolicyError, match="down"):
        await turns.ask(policy, "update", [1], 4)
    await turns.ask(policy, "update", [1], 4)
    assert len(turns.recorded) == 1
    assert policy.calls[0].sampling.seed != policy.calls[1].sampling.seed


async def test_the_latest_turn_of_a_role_is_credited_if_it_is_trained():
    turns = Turns(SAMPLING)
    for role, trained in (("plan", True), ("plan", True), ("judge", False)):
        await turns.ask(echo(), role, [1], 4, trained)
    turns.credit("plan", state=["a page", "another"])
    turns.credit("plan", reward=0.0)
    turns.credit("judge", reward=1.0, state=[])
    turns.credit("nobody", reward=1.0)
    first, second, judge = turns.recorded
    assert (first.reward, first.state, judge.reward, judge.state) == (None, None, None, None)
    assert second.reward == 0.0
    for showed, same in ((["a page", "another"], True), (["another", "a page"], False), (["a page/another"], False)):
        turns.credit("plan", state=showed)
        assert (turns.recorded[1].state == second.state) == same
    turns.branch().credit("plan", reward=0.5)
    assert turns.recorded[1].reward == 0.5
