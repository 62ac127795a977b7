from __future__ import annotations

from typing import Any

import pytest

from core.backends.rollouts import describe_rollout
from core.backends.verl.rows import BatchRow, Credit, credit_rows, make_verl_rows, split_rollouts
from core.config import AlgorithmSection
from core.types import Completion, Trajectory, Turn

PLAIN = AlgorithmSection(name="grpo", std_normalization=False, loss_agg="rollout", rows="turn", split_advantage=False)


def make_turn(prompt: int, sampled: int, trained: bool = True) -> Turn:
    ids = tuple(range(100, 100 + sampled))
    return Turn("policy", tuple(range(1, prompt + 1)), Completion(ids, (-1.0,) * sampled, "stop"), trained)


def make_row(key: str, trained: int, reward: float | None, turns: int = 1, **notes: Any) -> BatchRow:
    end: Any = ("completed", reward) if reward is not None else ("failed", None, "late")
    trajectory = Trajectory("t", (), *end)
    given = {**describe_rollout(trajectory), "reward": reward, "turns": turns, "trained_tokens": trained, **notes}
    return BatchRow(key, trained, given)


def test_a_long_prompt_goes_on_in_the_response_masked() -> None:
    (row,) = make_verl_rows(Trajectory("t", (make_turn(6, 2),), reward=1.0), "turn", prompt_length=4)
    assert row.prompt_ids == [1, 2, 3, 4]
    assert row.response_ids == [5, 6, 100, 101]
    assert row.response_mask == [0, 0, 1, 1]
    assert row.response_logprobs == [0.0, 0.0, -1.0, -1.0]


def test_the_last_row_is_trained_and_no_row_is_empty() -> None:
    turns = (make_turn(2, 1), make_turn(2, 3), make_turn(2, 2, trained=False), make_turn(2, 0))
    rows = make_verl_rows(Trajectory("t", turns, reward=1.0), "turn", 8)
    assert [row.response_mask for row in rows] == [[1], [1, 1, 1]]


@pytest.mark.parametrize(
    "trajectory",
    [
        Trajectory("t", (make_turn(2, 2),), "failed", None, "deadline"),
        Trajectory("t", (make_turn(2, 2, trained=False),), reward=1.0),
        Trajectory("t", (), reward=1.0),
    ],
)
def test_a_rollout_without_a_trained_token_is_one_masked_row(trajectory: Trajectory) -> None:
    (row,) = make_verl_rows(trajectory, "turn", 8)
    assert (len(row.prompt_ids), row.response_mask) == (1, [0])


def test_a_rollout_counts_once_and_a_failed_one_not_at_all() -> None:
    rows = [
        *[make_row(f"a_0_{place}", 2, 1.0) for place in range(3)],
        make_row("a_1_0", 5, 0.0),
        make_row("a_2_0", 0, None),
        make_row("b_0_0", 4, 1.0),
    ]
    # Group a: rewards 1 and 0. Group b has one rollout, and so no advantage. Three rollouts are trained.
    share = 1 / 3
    assert credit_rows([rows], PLAIN) == {
        **{f"a_0_{place}": Credit(0.5, pytest.approx(share / 6)) for place in range(3)},
        "a_1_0": Credit(-0.5, pytest.approx(share / 5)),
        "b_0_0": Credit(0.0, pytest.approx(share / 4)),
    }


def test_a_step_is_averaged_by_itself_and_a_group_may_lie_in_two() -> None:
    steps = [[make_row("a_0_0", 2, 1.0)], [make_row("a_1_0", 2, 0.0), make_row("b_0_0", 2, 1.0)]]
    credits = credit_rows(steps, PLAIN)
    assert credits == {"a_0_0": Credit(0.5, 0.5), "a_1_0": Credit(-0.5, 0.25), "b_0_0": Credit(0.0, 0.25)}


def test_a_group_that_is_left_out_has_no_weight() -> None:
    algorithm = PLAIN.model_copy(update={"min_group_std": 0.1})
    rows = [make_row("a_0_0", 2, 1.0), make_row("a_1_0", 2, 1.0), make_row("b_0_0", 2, 1.0), make_row("b_1_0", 2, 0.0)]
    credits = credit_rows([rows], algorithm)
    assert {key: credit.scale for key, credit in credits.items()} == {"b_0_0": 0.25, "b_1_0": 0.25}


def test_an_advantage_is_split_over_all_turns_of_its_rollout() -> None:
    algorithm = PLAIN.model_copy(update={"split_advantage": True})
    credits = credit_rows([[make_row("a_0_0", 2, 1.0, turns=4), make_row("a_1_0", 2, 0.0, turns=2)]], algorithm)
    assert [credit.advantage for credit in credits.values()] == [0.125, -0.25]


def test_rewards_that_compare_a_group_are_those_of_the_method() -> None:
    seen = []

    def regrade(uid: str, group: Any) -> list[Trajectory]:
        seen.append((uid, [(t.status, t.reward, dict(t.metrics)) for t in group]))
        return [Trajectory("t", (), t.status, 3.0 if i == 0 else 1.0) for i, t in enumerate(group)]

    rows = [make_row("a_0_0", 1, 1.0, metrics={"cost": 2.0}), make_row("a_1_0", 1, 1.0)]
    credits = credit_rows([rows], PLAIN, regrade)
    assert seen == [("a", [("completed", 1.0, {"cost": 2.0}), ("completed", 1.0, {})])]
    assert [credit.advantage for credit in credits.values()] == [1.0, -1.0]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [["a_0", "b_0", "a_1", "c_0", "c_1"]]),
        (2, [["a_0", "b_0", "a_1"], ["c_0", "c_1"]]),
        (9, [["a_0", "a_1"], ["b_0"], ["c_0", "c_1"]]),
    ],
)
def test_a_batch_is_cut_by_rollouts(count: int, expected: list[list[str]]) -> None:
    assert split_rollouts(["a_0", "b_0", "a_1", "c_0", "c_1"], count) == expected
