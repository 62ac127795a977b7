"""The `tiny` preset: splits that share no question, and demonstrations that tell neither a meaning nor to compute."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from agentic.retool.rollout import SPEC, ReTool
from agentic.retool.world import MEANINGS, OPERATORS, WORLD, Computation, draw_demonstration, encode, solve
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.types import Sampling
from tests.kit import script_policy


def test_operators_of_demonstrations_do_not_depend_on_the_words() -> None:
    """The right operator is shown as rarely as any other one; right conversations come by chance."""
    rng, seen, right, at_once, whole = Random(0), Counter[tuple[str, str]](), 0, 0, 0
    for _ in range(3000):
        shown = draw_demonstration(rng, answer_at_once=0.3)
        asked = Computation.read(shown.question)
        at_once += not shown.programs
        right += str(asked.translate().compute()) in shown.answer
        for program, printed in shown.programs:
            code = program.removeprefix("<code> ").removesuffix("</code>")
            assert str(eval(code)) == printed
            drawn = Computation.read(f"What is {code}?")
            assert f" {' '.join(map(str, drawn.numbers))} " in f" {' '.join(map(str, asked.numbers))} "
            whole += drawn.numbers == asked.numbers
            if drawn.numbers == asked.numbers:
                seen.update(zip(asked.operators, drawn.operators, strict=True))
    assert at_once / 3000 == pytest.approx(0.3, abs=0.03)
    assert 0.3 < whole / 3000 < 0.7
    assert 0 < right / 3000 < 0.12
    shares = {}
    for word, meaning in MEANINGS.items():
        drawn_for_it = {operator: count for (each, operator), count in seen.items() if each == word}
        assert drawn_for_it.keys() == set(OPERATORS)
        shares[word] = drawn_for_it[meaning] / sum(drawn_for_it.values())
    assert sum(shares.values()) / len(shares) == pytest.approx(1 / len(OPERATORS), abs=0.03)
    assert max(shares.values()) < 1 / len(OPERATORS) + 0.05


async def test_a_demonstrated_turn_has_the_prompt_of_the_rollout(tokenizer: Any, isolation: None) -> None:
    """Played in the method, supervised conversations are right, and their prompts are the demonstrated ones."""
    method = ReTool(SPEC.load("tiny", ["retool.sandbox.timeout_s=60"]), tokenizer)
    for task in WORLD.draw_tasks("train", 3):
        turns = encode(solve(task.question), method.renderer)
        replies = dict(turns)
        policy = ScriptedPolicy(lambda prompt, sampling, known=replies: known[prompt], decode=tokenizer.decode)
        trajectory = await method.rollout(task, Roles({"policy": policy}), Sampling())
        assert (trajectory.reward, len(trajectory.turns)) == (1.0, 2)
        assert [(turn.prompt_ids, turn.completion.token_ids) for turn in trajectory.turns] == turns
    await method.close()


async def test_baselines_are_scored_by_what_they_leave_out(tokenizer: Any, isolation: None) -> None:
    recipe = SPEC.load("tiny", ["retool.sandbox.timeout_s=60"])
    policy = script_policy(tokenizer, [" 48}"])
    scores, asked = {}, WORLD.draw_tasks("test", 12)
    for name, make in WORLD.baselines.items():
        baseline = make(recipe, tokenizer)
        runs = [await baseline.rollout(task, Roles({"policy": policy}), Sampling(seed=0)) for task in asked]
        scores[name] = sum(run.metrics["official"] for run in runs) / len(runs)
        assert {run.metrics["calls_interpreter"] for run in runs} == ({0} if name == "no-code" else {1})
        if name == "no-code":
            assert {run.log["answer"] for run in runs} == {"\\boxed{ 48}"}
        await baseline.close()
    assert scores["no-code"] <= 0.1
    assert max(scores.values()) < 0.6
