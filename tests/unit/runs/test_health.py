"""Signs are read from the metrics of a step, with patience, and say when they begin and when they end."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.config import HealthSection
from core.engine import weights
from core.engine.engine import Engine
from core.runs.health import FIXES, SIGNS, Health, describe_lengths, measure_health
from core.types import Completion, Sampling, Task, Trajectory, Turn
from tests import kit

WELL: dict[str, Any] = {
    "reward": 0.5, "reward_std": 0.5, "groups_with_signal": 0.5, "failed": 0.0, "failures": {}, "cut_off": 0.1,
    "entropy_loss": 0.3, "grad_norm": 1.0, "nonfinite_steps": 0.0, "train_rollout_logprob_abs_diff": 1e-6,
    "observation_loss": 2.0, "calls_search": 1.5, "calls_python": 0.0, "failed_calls": 1.0,
    "task_rewards": {"": [0.5] * 16}, "rows": 8, "critic_rows": 4, "recomputed": 0.1,
    "rewarded_turns": 3,
}  # fmt: skip
ILL: dict[str, dict[str, Any]] = {
    "steps_skipped": {"nonfinite_steps": 0.5},
    "rollouts_failed": {"failed": 0.3, "failures": {"timeout": 3}},
    "rewards_equal": {"reward_std": 0.0, "groups_with_signal": 0.0},
    "no_signal": {"groups_with_signal": 0.0},
    "no_gradient": {"grad_norm": 0.0},
    "reward_fell": {"task_rewards": {"": [0.1] * 16}},
    "replies_cut": {"cut_off": 0.96},
    "more_cut": {"cut_off": 0.7},
    "entropy_gone": {"entropy_loss": 1e-4},
    "engine_apart": {"train_rollout_logprob_abs_diff": 0.3},
    "cache_too_small": {"recomputed": 0.9},
    "nothing_observed": {"observation_loss": 0.0},
    "turns_unrewarded": {"rewarded_turns": 0},
    "policy_untaught": {"critic_rows": 0, "critic_rows_skipped": 0},
    "tools_unused": {"calls_search": 0.0, "failed_calls": 0.0},
    "tools_failed": {"failed_calls": 1.5},
}
TOGETHER = {"replies_cut": {"replies_cut", "more_cut"}}
"""Names the signs that another one comes with."""


def follow(health: Health, *steps: dict[str, Any]) -> list[list[str]]:
    return [health.update({**WELL, **metrics}) for metrics in steps]


def test_a_policy_beside_a_trained_one_is_told_of_and_metrics_of_a_method_are_none() -> None:
    health = Health(HealthSection())
    follow(health, *[{"table_rows": 0}] * 5)
    assert "policy_untaught" not in health.active
    follow(health, *[{"rows": 0, "critic_rows": 5, "critic_rows_skipped": 0}] * 5)
    assert "policy_untaught" in health.active


def test_rewards_that_differ_and_train_no_turn_are_told() -> None:
    """Such as where the method trains none, or `overlong_filter` leaves none."""
    health = Health(HealthSection())
    follow(health, *[{"rows": 0, "groups_with_signal": 0.5}] * 3)
    assert health.active["policy_untaught"].startswith("no turn of policy is trained")


@pytest.mark.parametrize("name", ILL)
def test_each_sign_begins_after_its_patience_and_ends(name: str) -> None:
    health = Health(HealthSection())
    at_once = next(sign.at_once for sign in SIGNS if sign.name == name)
    assert not any(follow(health, {}, {}))
    begun = [step for step, lines in enumerate(follow(health, *[ILL[name]] * 3), 1) if lines]
    assert begun == [1 if at_once else 3]
    assert health.active.keys() == TOGETHER.get(name, {name})
    (ended,) = (lines for lines in follow(health, *[{}] * 5) if lines)
    assert f"over: {name.replace('_', ' ')}" in ended
    assert not health.active


@pytest.mark.parametrize("name", ["entropy_gone", "engine_apart"])
def test_a_sign_of_any_trained_policy_shows(name: str) -> None:
    health = Health(HealthSection(patience=1))
    assert not any(follow(health, {"verifier_entropy_loss": 0.3, "verifier_train_rollout_logprob_abs_diff": 0.0}))
    follow(health, {f"verifier_{key}": value for key, value in ILL[name].items()})
    assert health.active.keys() == {name}


@pytest.mark.parametrize("name", ["rewards_equal", "no_signal"])
def test_equal_rewards_that_teach_are_no_sign(name: str) -> None:
    """With a value head, rewards of turns, or one rollout a task in a normalised batch, weights do learn from them."""
    health = Health(HealthSection())
    assert not any(follow(health, *[{**ILL[name], "pg_loss": -0.2}] * 4))
    assert any(follow(health, *[{**ILL[name], "pg_loss": 0.0}] * 4))


def test_every_sign_is_tried_here_and_has_a_fix() -> None:
    assert ILL.keys() == FIXES.keys()
    assert all(FIXES.values())


def test_a_step_that_does_not_tell_changes_nothing() -> None:
    """No row was trained, so there is no entropy: the sign neither ends nor begins. A null counts as missing."""
    health = Health(HealthSection(patience=2))
    follow(health, *[ILL["entropy_gone"]] * 2)
    assert health.update({"entropy_loss": None}) == health.update({}) == []
    assert health.active.keys() == {"entropy_gone"}
    assert follow(health, {})[0] == ["over: entropy gone"]


def test_the_words_hold_the_numbers_and_what_to_try() -> None:
    health = Health(HealthSection())
    (line,) = health.update({"failed": 0.5, "failures/engine": 2, "failures/bad_task": 1})  # as slime has them
    told = "warning, rollouts failed: 50% of the rollouts failed: 2 x engine, 1 x bad_task. Try: "
    assert line == told + FIXES["rollouts_failed"]


def test_only_skipped_steps_in_a_row_end_a_run() -> None:
    health = Health(HealthSection(end_after=2))
    ends = []
    for skipped in (1.0, 0.5, 1.0, 1.0):
        health.update({"nonfinite_steps": skipped})
        ends.append(health.find_end() is not None)
    assert ends == [False, False, False, True]
    assert health.trained, "half of the second step's were taken"
    assert not Health(HealthSection()).trained


def test_chance_is_no_fall_of_the_reward() -> None:
    """Tasks that succeed or fail by the toss of a coin, of a common and of a rare kind: 300 steps without an alarm."""
    rng = random.Random(0)
    health = Health(HealthSection())
    for _ in range(300):
        rewards = {"coin": [float(rng.random() < 0.5) for _ in range(6)], "rare": [float(rng.random() < 0.5)]}
        assert health.update({"task_rewards": rewards}) == []


def test_kinds_of_other_difficulty_in_one_large_step_are_no_fall_of_the_reward() -> None:
    health = Health(HealthSection())
    for _ in range(20):
        assert health.update({"task_rewards": {"easy": [0.95] * 16, "hard": [0.2] * 16}}) == []


def reply(*ids: int, reason: Any = "stop", trained: bool = True) -> Turn:
    return Turn("act", (1, 2), Completion(ids, (-1.0,) * len(ids), reason), trained)


def test_rollouts_are_measured_by_task_and_kind() -> None:
    tasks = [Task("a", "?", ("x",), metadata={"kind": "sum"}), Task("b", "?", ("x",)), Task("c", "?", ("x",))]
    rollouts = [
        Trajectory("a", (reply(3), reply(3, 4, reason="length")), reward=1.0),
        Trajectory("a", (reply(3, reason="length", trained=False),), reward=0.0),
        Trajectory("b", (reply(3),), reward=0.25),
        Trajectory("c", (), "failed", failure="timeout"),
    ]
    measured = measure_health(tasks, rollouts)
    assert measured.pop("reward_std") == pytest.approx(0.4249183)
    assert measured == {
        "failures": {"timeout": 1},
        "failed": 0.25,
        "task_rewards": {"sum": [0.5], "": [0.25]},
        "cut_off": 0.25,  # half of one rollout's trained replies, none of another's
    }
    assert "task_rewards" not in measure_health(tasks, rollouts, comparable=False)


@pytest.mark.parametrize(("kv_tokens", "least", "most"), [(1024, 0.0, 0.15), (256, 0.99, 1.01)])
def test_conversations_that_drive_each_other_out_of_the_cache_are_measured(
    kv_tokens: int, least: float, most: float, tmp_path: Path
) -> None:
    """Three of them take turns; the smaller cache holds one of them and a half."""
    model = weights.load(kit.save_model(tmp_path / "model", 0), "float32")
    engine = Engine(model, kv_tokens=kv_tokens)
    prompts = [(50 + i, *range(90), *range(40)) for i in range(3)]
    turns: list[list[Turn]] = [[], [], []]
    for _ in range(3):
        for i, ids in enumerate(prompts):
            [completion] = engine.generate([ids], Sampling(max_new_tokens=8, seed=i))
            turns[i].append(Turn("policy", ids, completion, trained=True))
            prompts[i] = (*ids, *completion.token_ids, *range(20))
    rollouts = [Trajectory(f"{i}", tuple(own), status="completed", reward=0.0) for i, own in enumerate(turns)]
    share = measure_health([], rollouts)["recomputed"]
    assert least < share < most
    apart = replace(rollouts[0], turns=rollouts[0].turns[::2][::-1])
    assert "recomputed" not in measure_health([], [apart]), "its second call continues nothing"


@pytest.mark.parametrize(
    ("lengths", "cut", "text"),
    [
        (range(1, 11), 1, "half of the untrained replies have at most 5 tokens, 90% at most 9; 10% are cut off"),
        ([3], 0, "half of the untrained replies have at most 3 tokens, 90% at most 3; 0% are cut off"),
        ([8, 2, 8, 8], 3, "at most 8 tokens, 90% at most 8; 75% are cut off, and short ones earn more at first. Raise"),
        ([1, 1, 1], 3, "at most 1 tokens, 90% at most 1; 0% are cut off"),  # one token is a choice, and its limit meant
        ([], 0, "no rollout has a trained reply"),
    ],
)
def test_the_lengths_of_the_first_replies_are_told(lengths: Iterable[int], cut: int, text: str) -> None:
    """The longest `cut` replies are cut off; what others said, and failed rollouts, do not count."""
    sizes = sorted(lengths)
    turns = [
        Turn("act", (1,), Completion((5,) * n, (0.0,) * n, "length" if place >= len(sizes) - cut else "stop"), True)
        for place, n in enumerate(sizes)
    ]
    other = Turn("judge", (1,), Completion((5,) * 90, (0.0,) * 90, "length"), False)
    failed = Trajectory("t", tuple(turns[:1]) * 9, status="failed", failure="timeout")
    said = describe_lengths([Trajectory("t", (*turns, other), reward=1.0), failed])
    assert text in said
    assert ("overlong_filter" in said) == (cut > 1 and max(sizes) > 1)
    if sizes:
        share = cut * (max(sizes) > 1) / len(sizes)
        assert measure_health([], [Trajectory("t", (*turns, other), reward=1.0)])["cut_off"] == share
