"""The `tiny` preset: splits share nothing, demonstrations tell the form alone, and the loop runs them as they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from agentic.agent.facts import ASKED, RELATIONS, THINGS, look_up
from agentic.agent.rollout import SPEC, build
from agentic.agent.world import LookupDemonstration, draw_demonstration, encode
from core.policy.base import Roles
from core.text.conversation import Renderer
from core.types import Sampling, Task
from tests.kit import script_policy


def read_call(shown: LookupDemonstration) -> str:
    return shown.call.partition('"thing": " ')[2].partition('"')[0]


def test_demonstrations_choose_at_random_and_tell_no_fact() -> None:
    """Every choice is as likely as any other, so that nothing but the form can be learned from them."""
    rng, count = Random(0), 4000
    places, right_names = Counter[int](), 0
    for _ in range(count):
        shown = draw_demonstration(rng)
        words = [word.strip("?.,") for word in shown.question.split()]
        mentioned = [word for word in words if word in THINGS]
        thing = read_call(shown)
        asked = words[words.index("of") + 2]
        places[mentioned.index(thing) if thing != asked else -1] += 1
        name = shown.answer.strip()
        assert f" {name}" in shown.result
        right_names += f"{ASKED} {name}" in shown.result
    assert places[-1] / count == pytest.approx(1 / 4, abs=0.03)
    assert right_names / count == pytest.approx(1 / len(RELATIONS), abs=0.03)


async def test_the_warm_starts_prompts_are_those_of_a_rollout(tokenizer: Any) -> None:
    shown = draw_demonstration(Random(1))
    shown = replace(shown, result=look_up(read_call(shown), world=7))
    policy = script_policy(tokenizer, [shown.call, shown.answer])
    method, task = build(SPEC.load("tiny"), tokenizer), Task("1", shown.question, ("x",), metadata={"world": 7})
    try:
        done = await method.rollout(task, Roles({"policy": policy}), Sampling())
    finally:
        await method.close()
    asked = [(turn.prompt_ids, turn.completion.token_ids) for turn in done.turns]
    assert asked == encode(shown, Renderer(tokenizer))
