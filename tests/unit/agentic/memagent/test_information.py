"""The information reward of InfoMem: which tokens it measures, what a group earns by it, and where it is refused."""

from __future__ import annotations

import pickle
from dataclasses import replace
from statistics import stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.memagent.information import add_information, measure_answer
from agentic.memagent.rollout import SPEC, MemAgent
from core.backends.slime import flags
from core.config import RecipeError
from core.policy.base import Roles
from core.types import Completion, Sampling, Task, Trajectory
from tests.kit import script_policy

TASK = Task("t", "What is the word for hat?", ("acorn",), " The hat word is acorn.")


def make_method(tokenizer: Any, *overrides: str) -> MemAgent:
    return MemAgent(SPEC.load("tiny", [f"memagent.{each}" for each in overrides]).memagent, tokenizer)


@pytest.mark.parametrize(
    ("form", "before", "answer", "behind"),
    [
        ("boxed", " acorn, so", "\\boxed{acorn}", " acorn, acorn."),
        ("boxed", "\\boxed{hat} \\boxed{acorn}", "\\boxed{ acorn}", "<|im_end|>"),
        ("boxed", "<think>\\boxed{hat}</think>", "\\boxed{a{c}orn}", "}"),
        ("boxed", "", "42", "<|im_end|>"),
        ("the_answer_is", "the answer is hat. Therefore,", " the answer is acorn", ".**"),
    ],
)
def test_only_its_own_tokens_measure_an_answer(
    tokenizer: Any, form: str, before: str, answer: str, behind: str
) -> None:
    parts = [tokenizer.encode(text, add_special_tokens=False) for text in (before, answer.lstrip(" "), behind)]
    of_answer = [-0.5 * place for place in range(len(parts[1]))]
    logprobs = (*[-50.0] * len(parts[0]), *of_answer, *[-50.0] * len(parts[2]))
    completion = Completion((*parts[0], *parts[1], *parts[2]), logprobs, "stop")
    measured = measure_answer(completion, make_method(tokenizer, f"answer_format={form}").read)
    assert measured == {"answer_logprob": pytest.approx(sum(of_answer) / len(of_answer))}


async def test_a_rollout_differs_by_the_metric_alone(tokenizer: Any) -> None:
    for said, found in (("\\boxed{acorn}", {"answer_logprob": -0.5}), ("acorn", {})):
        plain, informed = [
            await make_method(tokenizer, f"information_reward={weight}").rollout(
                TASK, Roles({"policy": script_policy(tokenizer, [" acorn", said], last=False)}), Sampling(seed=3)
            )
            for weight in (0, 0.2)
        ]
        assert informed == replace(plain, metrics={**plain.metrics, **found})


def make_rollout(reward: float | None, logprob: float | None = None) -> Trajectory:
    metrics = {} if logprob is None else {"answer_logprob": logprob}
    return Trajectory("t", (), "failed" if reward is None else "completed", reward, metrics=metrics)


LOST, SILENT, WRONG = make_rollout(None), make_rollout(0.0), make_rollout(0.0, -0.01)
NEAR = 0.2 / 2**0.5
"""Is what the better of two earns: each is half their difference from the mean, and the std is that times sqrt 2."""


@pytest.mark.parametrize(
    ("logprobs", "others", "earned"),
    [
        ([-3.0, -1.0], [LOST, SILENT, WRONG], [-NEAR, NEAR]),
        ([-1.0, -1.0, -1.0, -9.0], [WRONG], [0.2 * 2 / stdev([1, 1, 1, 9])] * 3 + [-0.2]),  # it is 1.5 std below
        ([-0.1, -0.1, -0.1], [WRONG, LOST], [0.0] * 3),
        ([-1.0, -1.0 - 1e-10], [WRONG], [0.0] * 2),  # noise of the engine is no signal
        ([-1.0], [WRONG, LOST], [0.0]),
        ([], [WRONG, SILENT, LOST], []),
    ],
)
def test_likely_answers_earn_more(logprobs: list[float], others: list[Trajectory], earned: list[float]) -> None:
    group = [*(make_rollout(1.0, value) for value in logprobs), *others]
    graded = add_information(0.2, TASK, group)
    assert [t.reward for t in graded[: len(logprobs)]] == pytest.approx([1 + each for each in earned], abs=1e-4)
    assert graded[len(logprobs) :] == others


@given(
    st.lists(st.tuples(st.sampled_from([None, 0.0, -0.5, 0.25, 1.0]), st.floats(-1e3, 0)), max_size=12),
    st.floats(0, 0.25, exclude_max=True),
)
def test_right_stays_above_wrong_and_likely_above_unlikely(drawn: list[tuple[Any, float]], weight: float) -> None:
    """0.25 and -0.5 are rewards beside those of gate_rewards."""
    group = [make_rollout(*each) for each in drawn]
    graded = add_information(weight, TASK, group)
    for (reward, _), old, new in zip(drawn, group, graded, strict=True):
        if (reward or 0) > 0:
            assert (new.reward or 0) > 0
            assert replace(new, reward=reward) == old
        else:
            assert new is old
    for level in (0.25, 1.0):
        right = [new for (reward, _), new in zip(drawn, graded, strict=True) if reward == level]
        rewards = [t.reward or 0 for t in sorted(right, key=lambda t: t.metrics["answer_logprob"])]
        assert rewards == sorted(rewards)


def test_a_recipe_compares_groups_only_with_the_option() -> None:
    rows = ["slime.rows=fan_out", "algorithm.loss_agg=token"]
    flags.cluster(SPEC.load("seed", [*rows, "memagent.information_reward=0"]))
    with pytest.raises(RecipeError, match="lack a reward that compares a group"):
        flags.cluster(SPEC.load("seed", [*rows, "memagent.information_reward=0.2"]))
    regrade = pickle.loads(pickle.dumps(SPEC)).regrade  # seeds train in processes of their own
    assert regrade(SPEC.load("tiny")) is None
    pair = [make_rollout(1.0, -2.0), make_rollout(1.0, -1.0)]
    compare = regrade(SPEC.load("tiny", ["memagent.information_reward=0.5"]))
    assert compare(TASK, pair) == add_information(0.5, TASK, pair) != pair
