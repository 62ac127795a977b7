"""The `tiny` preset: demonstrations show the form of programs and answers and no decision."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from agentic.rlm.rollout import SPEC
from agentic.rlm.world import FACT, UNKNOWN, WORLD, Annotator, TrustedRLM, draw_task, write_programs
from core.data import write_jsonl
from core.policy.base import Roles
from core.types import Sampling


async def test_demonstrations_favour_no_program_no_word_and_no_fact(tokenizer: Any, isolation: None) -> None:
    method, rng = TrustedRLM(SPEC.load("tiny"), tokenizer), Random(0)
    kinds, words, told, picked, right = (Counter[str]() for _ in range(5))
    count = 1200
    for _ in range(count):
        task = draw_task(rng)
        trajectory = await method.play(task, Annotator(tokenizer, rng))
        right[str(trajectory.reward)] += 1
        (asked,) = re.findall(r"for (\w+) mentioned", task.question)
        for ran in trajectory.log["programs"]:
            code = ran["program"]
            kinds[
                "look" if "[:200]" in code else "split" if "parts" in code else "ask" if "llm" in code else "show"
            ] += 1
            words.update(pair.replace(asked, "KEY") for pair in re.findall(r'find\(" (\w+ \w+)"', code))
        for turn in (turn for turn in trajectory.turns if turn.role == "subcall"):
            part = tokenizer.decode(turn.prompt_ids).partition("?")[2]
            facts, reply = FACT.findall(part), tokenizer.decode(turn.completion.token_ids)
            if not facts:
                assert reply == f"{UNKNOWN}<|im_end|>"
            elif len(facts) > 1 and asked in dict(facts):
                told["asked"] += f" {asked} is" in reply
                told["all"] += 1
                told["chance"] += 1000 // len(facts)
        facts = dict(FACT.findall(trajectory.log["programs"][-1]["output"]))
        if asked in facts and len(facts) > 1:
            picked["asked"] += bool(facts[asked] in trajectory.log["answer"])
            picked["all"] += 1
            picked["chance"] += 1000 // len(facts)
    assert kinds.keys() == {"look", "show", "ask", "split"}
    assert [n / kinds.total() for n in kinds.values()] == pytest.approx([0.25] * 4, abs=0.04)
    assert len(words) == 12
    assert words["for KEY"] / words.total() == pytest.approx(1 / 12, abs=0.03)
    assert told["asked"] / told["all"] == pytest.approx(told["chance"] / 1000 / told["all"], abs=0.08)
    assert picked["asked"] / picked["all"] == pytest.approx(picked["chance"] / 1000 / picked["all"], abs=0.1)
    assert 0.05 < right["1.0"] / count < 0.3


async def test_the_right_programs_answer_in_the_sandbox_and_baselines_are_scored(
    tokenizer: Any, isolation: None, tmp_path: Any
) -> None:
    write_jsonl(tmp_path / "train.jsonl", [replace(draw_task(Random(i)), task_id=str(i)) for i in range(24)])
    recipe = SPEC.load("tiny", [f"data.train={tmp_path / 'train.jsonl'}", "rlm.sandbox.timeout_s=60"])
    rng, scores = Random(1), {}
    tasks = [draw_task(rng) for _ in range(24)]
    for name, make in WORLD.baselines.items():
        method = make(recipe, tokenizer)
        runs = [await method.rollout(task, Roles({}), Sampling(seed=0)) for task in tasks]
        scores[name] = sum(run.reward or 0.0 for run in runs) / len(runs)
        assert all(run.metrics["failed_calls"] == 0 for run in runs)
        if name == "best-constant":
            assert len({ran["program"] for run in runs for ran in run.log["programs"]}) == 1
        await method.close()
    assert scores["aimless"] < 0.4
    assert scores["best-constant"] < 0.6
    assert scores["split-and-ask"] < 0.9

    wise = SPEC.build(recipe, tokenizer)
    rewards = []
    for task in tasks:
        (key,) = re.findall(r"for (\w+) mentioned", task.question)
        program = next(each for each in write_programs(key) if "llm_query(" in each and f'" for {key}"' in each)
        policy = Annotator(tokenizer, Random(0), program, wise=True)
        rewards.append((await wise.rollout(task, Roles({"policy": policy}), Sampling())).reward)
    await wise.close()
    assert rewards == [1.0] * len(tasks)
