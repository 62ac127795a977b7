"""The trajectories that the supervised baseline is shown are those that a policy without a mistake would have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentic.memagent import laptop
from agentic.memagent.gold import AnnotatorWords, write_gold_trajectory
from agentic.memagent.rollout import SPEC, MemAgent
from agentic.memagent.world import GOLD
from benchmarks.ruler.generate import generate
from benchmarks.ruler.niah import Niah
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import RolloutError
from core.types import Sampling, Task
from core.worlds.needles import KEYS, VALUES

TINY = Niah(value_type="words", num_k=4, key_words=KEYS, value_words=VALUES, bare_question=True)


@pytest.fixture(scope="module")
def method(tokenizer: Any) -> MemAgent:
    section = SPEC.load("tiny").memagent
    return MemAgent(section.model_copy(update={"max_memory_tokens": 48, "max_final_tokens": 24}), tokenizer)


def draw_tasks(family: Niah, tokenizer: Any, count: int) -> list[Task]:
    return list(generate(family, length=300, count=count, tokenizer=tokenizer, split="train", budget="document"))


@pytest.mark.parametrize(("family", "words"), [(TINY, GOLD), (Niah(num_k=4), laptop.GOLD)], ids=["tiny", "laptop"])
async def test_a_policy_that_writes_them_sees_their_prompts_and_has_the_reward(
    method: MemAgent, tokenizer: Any, family: Niah, words: AnnotatorWords
) -> None:
    for task in draw_tasks(family, tokenizer, 8):
        for needle in task.metadata["needles"]:
            assert needle["queried"] is False or needle.pop("queried")  # one without it is asked for
        turns = write_gold_trajectory(method, task, words)
        script = iter([completion for _, completion in turns])
        policy = ScriptedPolicy(lambda prompt, sampling, script=script: next(script))
        trajectory = await method.rollout(task, Roles({"policy": policy}), Sampling())
        assert [(turn.prompt_ids, turn.completion.token_ids) for turn in trajectory.turns] == turns
        assert trajectory.reward == 1.0
        notes = [tokenizer.decode(completion, skip_special_tokens=True) for _, completion in turns[:-1]]
        asked = next(needle for needle in task.metadata["needles"] if "queried" not in needle)
        known = [asked["value"] in note for note in notes]
        assert known == sorted(known), "nothing until the fact was read, and then the fact to the end"
        texts = [tokenizer.decode(section) for section in method.sections(task)[0]]
        needle = words.needle.format(**asked)
        assert known == ["".join(texts[: place + 1]).count(needle) > 0 for place in range(len(texts))]


def test_a_task_without_its_needle_is_named(method: MemAgent, tokenizer: Any) -> None:
    (task,) = draw_tasks(TINY, tokenizer, 1)
    with pytest.raises(RolloutError, match="lacks the sentence 'One of the special magic words for"):
        write_gold_trajectory(method, replace(task, context="The grass is green."), GOLD)
    with pytest.raises(RolloutError, match=r"takes \d+ tokens of 48"):
        write_gold_trajectory(method, task, replace(GOLD, fact="A long note. " * 20))
    with pytest.raises(RolloutError, match="it must ask for one needle, and asks for 0"):
        write_gold_trajectory(method, replace(task, metadata={}), GOLD)
