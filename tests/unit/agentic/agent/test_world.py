"""The `tiny` preset: splits share nothing, demonstrations tell the form alone, and the loop runs them as they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any

import pytest

from agentic.agent.config import AgentRecipe
from agentic.agent.facts import ASKED, RELATIONS, THINGS, find_facts, look_up
from agentic.agent.rollout import SPEC, build
from agentic.agent.world import THINGS_OF, WORLD, LookupDemonstration, draw_demonstration, encode, write_call
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import Method
from core.text.conversation import Renderer
from core.text.tokenizer import load_tokenizer
from core.types import Sampling, Task, Trajectory
from core.worlds import SPLITS
from tests.kit import script_policy


@pytest.fixture(scope="module")
def recipe() -> AgentRecipe:
    loaded = SPEC.load("tiny", ["warm_start.copy_steps=1", "warm_start.steps=8", "warm_start.batch_size=4"])
    assert isinstance(loaded, AgentRecipe)
    return loaded


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(WORLD.build_model(tmp_path_factory.mktemp("agent") / "model"))


def read_call(shown: LookupDemonstration) -> str:
    return shown.call.partition('"thing": " ')[2].partition('"')[0]


async def play(method: Method, task: Task, policy: ScriptedPolicy) -> Trajectory:
    try:
        return await method.rollout(task, Roles({"policy": policy}), Sampling())
    finally:
        await method.close()


def test_no_thing_is_in_two_splits_and_answers_are_facts() -> None:
    named: dict[str, set[str]] = {}
    for split in SPLITS:
        tasks = WORLD.draw_tasks(split, 64)
        assert tasks == WORLD.draw_tasks(split, 64)
        assert len({task.question for task in tasks}) == len({task.metadata["world"] for task in tasks}) == 64
        words = {task.task_id: task.question.translate(str.maketrans("?.,", "   ")).split() for task in tasks}
        named[split] = {word for task in tasks for word in words[task.task_id] if word in THINGS}
        for task in tasks:
            asked = words[task.task_id]
            thing = asked[asked.index("of") + 2]
            world = task.metadata["world"]
            assert task.answers == (find_facts(thing, world)[ASKED],)
            assert f"{ASKED} {task.answers[0]}" in look_up(f" {thing}", world)
        assert named[split] <= set(THINGS_OF[split])
    assert not any(one & other for one, other in combinations(named.values(), 2))
    assert sorted(thing for things in THINGS_OF.values() for thing in things) == sorted(THINGS)


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


async def test_the_warm_starts_prompts_are_those_of_a_rollout(recipe: AgentRecipe, tokenizer: Any) -> None:
    shown = draw_demonstration(Random(1))
    shown = replace(shown, result=look_up(read_call(shown), world=7))
    policy = script_policy(tokenizer, [shown.call, shown.answer])
    done = await play(build(recipe, tokenizer), Task("1", shown.question, ("x",), metadata={"world": 7}), policy)
    asked = [(turn.prompt_ids, turn.completion.token_ids) for turn in done.turns]
    assert asked == encode(shown, Renderer(tokenizer))


async def test_the_right_key_and_the_right_name_earn_the_reward(recipe: AgentRecipe, tokenizer: Any) -> None:
    facts = find_facts("lamp", world=7)
    owner, maker = facts["owner"], facts["maker"]
    question = "Who is the owner of the lamp? Beside it are the jar, the kite and the hat."
    task = Task("1", question, (owner,), metadata={"world": 7})
    for words, reward in (([write_call(" lamp"), f" {owner}"], 1.0), ([write_call(" lamp"), f" {maker}"], 0.0)):
        done = await play(build(recipe, tokenizer), task, script_policy(tokenizer, words))
        assert (done.reward, len(done.turns), done.status) == (reward, 2, "completed")
    guess = await play(
        WORLD.baselines["no-tool"](recipe, tokenizer), task, script_policy(tokenizer, [write_call(" lamp")])
    )
    assert (guess.reward, len(guess.turns)) == (0.0, 1)


@pytest.mark.parametrize(
    ("override", "turns"),
    [
        ("agent.agents.lookup.max_turns=3", 3),
        ("agent.agents.lookup.max_tool_calls=1", 2),  # the second answer calls once more; a third one is refused
        ("model.max_model_len=80", 1),
    ],
)
async def test_an_agent_that_calls_for_ever_ends_truncated(override: str, turns: int, tokenizer: Any) -> None:
    policy = script_policy(tokenizer, [write_call(" lamp")])
    [task] = WORLD.draw_tasks("train", 1)
    done = await play(build(SPEC.load("tiny", [override]), tokenizer), task, policy)
    assert (done.reward, len(done.turns), done.status) == (0.0, turns, "truncated")
