"""Named algorithms have their papers' formulas: the loss and the advantages of one group, against numbers by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from core.algorithms.aggregate import row_scales
from core.algorithms.grpo import GRPOConfig, grpo_loss
from core.algorithms.named import ALGORITHMS, list_departures
from core.config import AlgorithmSection, Recipe
from core.rollout.rows import rows_from_groups
from core.types import Completion, Status, Trajectory, Turn
from tests.kit import make_recipe

RATIO = 1.1
"""Lies inside of every clip range, so that the loss of a token is -RATIO * advantage."""


def answer(tokens: int, reward: float, status: Status = "completed") -> Trajectory:
    turn = Turn("policy", (1,), Completion((2,) * tokens, (0.0,) * tokens, "stop"), True)
    return Trajectory("t", (turn,), status, reward)


def loss_of(group: list[Trajectory], **settings: Any) -> float:
    """Return the policy loss of one group, as the trainer computes it."""
    algorithm = AlgorithmSection(**settings)
    rows = rows_from_groups([group], **algorithm.row_options())
    scales = row_scales(rows, algorithm.loss_agg, algorithm.max_response_length or 1)
    lengths = torch.tensor([row.trained_tokens for row in rows])
    old = torch.zeros(int(lengths.sum()), dtype=torch.float64)
    loss, _ = grpo_loss(
        old + math.log(RATIO), old, old, None, None,
        torch.tensor([row.advantage for row in rows], dtype=torch.float64).repeat_interleave(lengths),
        torch.ones_like(old),
        torch.tensor(scales, dtype=torch.float64).repeat_interleave(lengths),
        GRPOConfig(clip_ratio_low=algorithm.clip_ratio_low, clip_ratio_high=algorithm.clip_ratio_high),
    )  # fmt: skip
    return loss.item()


GROUP = [answer(2, 1.0), answer(4, 0.0), answer(6, 0.0), answer(8, 1.0)]
STD = math.sqrt(4 * 0.5**2 / 3) + 1e-6
"""The std of the rewards 1, 0, 0, 1, of a sample, as slime takes it."""


def test_grpo_is_the_mean_of_each_outputs_mean() -> None:
    """DeepSeekMath, equation 3: 1/G sum_i 1/|o_i| sum_t. Each output's mean is its advantage; they cancel."""
    assert loss_of(GROUP, name="grpo") == pytest.approx(0.0)
    assert loss_of(GROUP[:3], name="grpo", std_normalization=False) == pytest.approx(0.0)


def test_dr_grpo_divides_every_outputs_sum_by_the_same_length() -> None:
    """Dr. GRPO, listing 1: the sum over tokens / MAX_TOKENS, the mean over outputs; A = r - mean(r)."""
    by_hand = -RATIO * 0.5 * (2 - 4 - 6 + 8) / 100 / 4
    assert loss_of(GROUP, name="dr_grpo", max_response_length=100) == pytest.approx(by_hand)
    three = -RATIO * (2 / 3 * 2 - 1 / 3 * 4 - 1 / 3 * 6) / 3000 / 3
    assert loss_of(GROUP[:3], name="dr_grpo") == pytest.approx(three)


def test_dapo_is_a_token_mean_with_the_soft_overlong_punishment() -> None:
    """DAPO, equations 8, 9 and 13, with L_max 8 and L_cache 4: rewards 1, 0, 0 - 0.5, 1 - 1."""
    rewards = [1.0, 0.0, -0.5, 0.0]
    mean = 0.125
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / 3) + 1e-6
    weights = (2, 4, 6, 8)
    by_hand = -RATIO * sum(n * (r - mean) / std for n, r in zip(weights, rewards, strict=True)) / 20
    assert loss_of(GROUP, name="dapo", max_response_length=8, overlong_buffer_len=4) == pytest.approx(by_hand)
    plain = -RATIO * 0.5 / STD * (2 - 4 - 6 + 8) / 20
    assert loss_of(GROUP, name="dapo", overlong_buffer_len=None) == pytest.approx(plain)


def test_an_overlong_filter_trains_on_no_cut_rollout_and_keeps_its_reward_in_the_baseline() -> None:
    group = [answer(2, 1.0), answer(4, 0.0), answer(9, 0.0, "truncated")]
    by_hand = -RATIO * (2 * 2 / 3 - 4 * 1 / 3) / 6
    settings = {"name": "dapo", "std_normalization": False, "overlong_buffer_len": None, "overlong_filter": True}
    assert loss_of(group, **settings) == pytest.approx(by_hand)


def test_flow_grpo_and_memagent_by_hand() -> None:
    """AgentFlow, equation 5: 1/G sum_i 1/T_i sum_t 1/|a_i^t|. MemAgent, equations 4 and 5: one mean over all tokens."""
    two = Trajectory("t", (*answer(1, 0.0).turns, *answer(3, 0.0).turns), reward=1.0)
    group = [two, answer(4, 0.0)]
    assert loss_of(group, name="flow_grpo") == pytest.approx(0.0)
    assert loss_of([*group, answer(2, 0.0)], name="memagent") == pytest.approx(-RATIO * (4 * 2 - 4 - 2) / 3 / 10)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_name_alone_has_no_departure_and_each_changed_value_is_one(name: str) -> None:
    always = list_departures(AlgorithmSection(name=name))
    assert [line.partition(";")[0] for line in always] == (
        ["one mean over the tokens of a step, as in verl and slime"] if name in ("dapo", "cispo", "memagent") else []
    )
    for key, (value, source) in ALGORITHMS[name].items():
        if isinstance(value, bool):
            line = list_departures(AlgorithmSection(name=name, **{key: not value}))[0]
            assert f"algorithm.{key} is {'false' if value else 'true'}; {name} has" in line
            assert source in line


def test_departures_follow_the_settings_of_the_run() -> None:
    algorithm = {"name": "dapo", "dynamic_sampling": False}
    model = {"path": "none", "max_model_len": 4096}
    lines = make_recipe(Recipe, algorithm=algorithm, model=model, departures=["ours"]).list_departures()
    assert lines[0] == "ours"
    assert lines[1].startswith("algorithm.dynamic_sampling is false; dapo has true")
    assert "no single call is long enough" in lines[-1]
    assert len(make_recipe(Recipe, algorithm={"name": "grpo"}).list_departures()) == 0
    [unread] = make_recipe(Recipe, algorithm={"name": "grpo", "max_response_length": 9}).list_departures()
    assert unread.startswith("algorithm.max_response_length is 9, and neither overlong_buffer_len nor loss_agg uses it")


def test_a_run_from_before_a_rule_resumes_without_it() -> None:
    old = make_recipe(Recipe, algorithm={"name": "dapo", "overlong_buffer_len": None, "max_response_length": None})
    dumped = old.dump()
    for key in ("overlong_buffer_len", "max_response_length", "overlong_filter"):
        del dumped["algorithm"][key]
    assert Recipe.complete(dumped) == old.dump()


@pytest.mark.parametrize(
    ("key", "value", "user"), [("kl_loss_type", "k2", "kl_loss_coef"), ("max_num_gen_batches", 9, "dynamic_sampling")]
)
def test_a_key_that_nothing_uses_is_told(key: str, value: Any, user: str) -> None:
    name = {"name": "dr_grpo"}
    told = f"algorithm.{key} is {value}, and without algorithm.{user} nothing uses it"
    assert told in list_departures(AlgorithmSection(**name, **{key: value}))
    assert told not in list_departures(
        AlgorithmSection(**name, **{key: value, user: True if user == "dynamic_sampling" else 0.1})
    )
    assert not [
        line for line in list_departures(AlgorithmSection(name="grpo", kl_loss_coef=0)) if "nothing uses" in line
    ]
