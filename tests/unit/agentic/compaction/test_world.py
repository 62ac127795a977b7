"""The `tiny` preset: tasks that cannot be guessed, and demonstrations that are true and favour no fact."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest

from agentic.compaction.rollout import INSTRUCTIONS, REQUEST, SPEC
from agentic.compaction.world import FACTS_OF_A_SUMMARY, UNKNOWN, WORLD, AimlessAnnotator, draw_task
from core.policy.base import Roles
from core.types import Sampling, Trajectory

FACT = re.compile(r" (\w+) has (\w+)\.")


async def demonstrate(method: Any, seed: int) -> tuple[Any, Trajectory]:
    rng = Random(seed)
    task = draw_task((3, 6), rng, "train", "t")
    annotator = AimlessAnnotator(method.tokenizer, rng)
    return task, await method.rollout(task, Roles({"policy": annotator}), Sampling())


async def test_demonstrations_are_true_and_keep_asked_facts_as_rarely_as_others(method: Any) -> None:
    kept = {"asked": 0, "others": 0}
    expected = {"asked": 0.0, "others": 0.0}
    for seed in range(150):
        task, trajectory = await demonstrate(method, seed)
        for turn in trajectory.turns:
            shown = method.tokenizer.decode(turn.prompt_ids)
            written = dict(FACT.findall(method.tokenizer.decode(turn.completion.token_ids)))
            question, _, history = shown.partition(INSTRUCTIONS)
            asked = set(re.findall(r"the (\w+) have", question))
            known = dict(FACT.findall(history))
            assert all(known.get(name, UNKNOWN) == value for name, value in written.items())
            assert all(value in (UNKNOWN, dict(FACT.findall(task.context)).get(name)) for name, value in known.items())
            if REQUEST not in history:
                continue
            named = asked | known.keys()
            assert len(written) == FACTS_OF_A_SUMMARY
            for group, names in (("asked", asked), ("others", named - asked)):
                kept[group] += len(names & written.keys())
                expected[group] += len(names) * FACTS_OF_A_SUMMARY / len(named)
    assert kept["asked"] > 80
    for group in kept:
        assert kept[group] == pytest.approx(expected[group], rel=0.15)


async def test_baselines_keep_nothing_or_what_the_annotator_keeps(method: Any) -> None:
    recipe = SPEC.load("tiny")
    roles = Roles({"policy": AimlessAnnotator(method.tokenizer, Random(0))})
    score = {}
    for name, make in WORLD.baselines.items():
        baseline = make(recipe, method.tokenizer)
        tasks = enumerate(WORLD.draw_tasks("dev", 120))
        runs = [await baseline.rollout(task, roles, Sampling(seed=seed)) for seed, task in tasks]
        score[name] = sum(run.reward for run in runs) / len(runs)
        summed_up = ["Summary:" in method.tokenizer.decode(run.turns[-1].prompt_ids) for run in runs]
        assert any(summed_up) == (name == "aimless-summary")
    assert score["no-summary"] < score["aimless-summary"] < 0.5
