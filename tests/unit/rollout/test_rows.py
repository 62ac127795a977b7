"""Rows: normalised over rollouts first, expanded into turns afterwards; what was sampled is what is trained."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import mean, variance
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.algorithms.advantages import group_advantages
from core.rollout.rows import make_rows, rows_from_groups
from core.rollout.turns import extends
from core.types import AdvEstimator, Completion, Row, Trajectory, Turn

TOKENS = st.integers(0, 999)
ESTIMATORS = st.sampled_from(get_args(AdvEstimator))


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    prompt = tuple(draw(st.lists(TOKENS, min_size=1, max_size=6)))
    sampled = tuple(draw(st.lists(TOKENS, max_size=6)))
    logprobs = tuple(draw(st.floats(-9, 0)) for _ in sampled)
    trained = draw(st.booleans())
    reward = draw(st.sampled_from([None, 0.0, 0.5])) if trained else None
    return Turn("turn", prompt, Completion(sampled, logprobs, "stop"), trained, reward=reward)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    if draw(st.integers(0, 5)) == 0:
        # A failed rollout may have got somewhere before it failed.
        partial = tuple(draw(st.lists(turns(), max_size=2)))
        return Trajectory("t", partial, status="failed", failure="deadline", reward=draw(st.sampled_from([None, 1.0])))
    made = tuple(draw(st.lists(turns(), min_size=1, max_size=5)))
    status = draw(st.sampled_from(["completed", "truncated"]))
    return Trajectory("t", made, status=status, reward=draw(st.sampled_from([0.0, 0.25, 1.0])))


GROUPS = st.lists(st.lists(trajectories(), min_size=1, max_size=5), min_size=1, max_size=4)


def trained(trajectory: Trajectory) -> list[Turn]:
    return [turn for turn in trajectory.turns if turn.trained and turn.completion.token_ids]


@given(GROUPS, st.booleans(), st.booleans())
def test_rows_hold_what_was_sampled_in_trained_turns_and_nothing_else(groups, std_normalization, split):
    rows = rows_from_groups(groups, std_normalization=std_normalization, split_advantage=split)
    numbered = enumerate(t for group in groups for t in group)
    valid = [(number, trajectory) for number, trajectory in numbered if trajectory.status != "failed"]
    wanted = [turn for _, trajectory in valid for turn in trained(trajectory)]
    assert [row.rollout_id for row in rows] == [number for number, t in valid for _ in trained(t)]
    assert [row.tokens for row in rows] == [(*t.prompt_ids, *t.completion.token_ids) for t in wanted]
    assert [row.logprobs for row in rows] == [turn.completion.logprobs for turn in wanted]
    assert sum(row.trained_tokens for row in rows) == sum(len(turn.completion.token_ids) for turn in wanted)


@given(GROUPS, st.booleans(), st.booleans(), ESTIMATORS)
def test_failed_rollouts_leave_the_baseline(groups, std_normalization, split, estimator):
    """The rows are those of groups that never held the failed rollouts."""
    options = {"std_normalization": std_normalization, "split_advantage": split, "adv_estimator": estimator}
    rows = rows_from_groups(groups, **options)
    without = [alive for group in groups if (alive := [t for t in group if t.status != "failed"])]
    expected = rows_from_groups(without, **options)
    assert [(row.tokens, row.advantage) for row in rows] == [(row.tokens, row.advantage) for row in expected]


@given(GROUPS, st.booleans())
def test_credit_is_the_trajectorys_advantage_whole_or_in_equal_parts(groups, std_normalization):
    broadcast = rows_from_groups(groups, std_normalization=std_normalization, split_advantage=False)
    split = rows_from_groups(groups, std_normalization=std_normalization, split_advantage=True)
    flat = [t for group in groups for t in group]
    for group in groups:
        rewards = [t.reward if t.status != "failed" else None for t in group]
        advantages = group_advantages(rewards, std_normalization=std_normalization)
        expected = dict(zip(map(id, group), advantages, strict=True))
        for whole, part in zip(broadcast, split, strict=True):
            trajectory = flat[whole.rollout_id]
            if id(trajectory) in expected:
                assert whole.advantage == expected[id(trajectory)]
                assert part.advantage == pytest.approx(whole.advantage / len(trajectory.turns))


def test_rollouts_without_turns_or_reward_make_no_rows():
    turn = Turn("turn", (1,), Completion((2,), (0.0,), "stop"), True)
    group = [Trajectory("t", (), reward=1.0), Trajectory("t", (turn,), reward=None), Trajectory("t", (turn,), reward=0)]
    rows = rows_from_groups([group], std_normalization=False, split_advantage=True)
    assert [(row.rollout_id, row.advantage) for row in rows] == [(2, -0.5)]


@st.composite
def conversations(draw: st.DrawFn) -> Trajectory:
    """Turns of which each goes on from all before it, but where a new segment starts; some are not trained."""
    made: list[Turn] = []
    for _ in range(draw(st.integers(1, 6))):
        goes_on = bool(made) and draw(st.integers(0, 3)) > 0
        held = (*made[-1].prompt_ids, *made[-1].completion.token_ids) if goes_on else ()
        fresh = draw(turns())
        made.append(replace(fresh, prompt_ids=(*held, *fresh.prompt_ids)))
    return Trajectory("t", tuple(made), reward=draw(st.sampled_from([0.0, 1.0])))


CONVERSATIONS = st.lists(st.lists(conversations(), min_size=1, max_size=4), min_size=1, max_size=3)


def sampled(rows: list[Row]) -> Counter[tuple[int, int, float, float]]:
    """(rollout, token, log-prob, advantage) of every trained token."""
    found: Counter[tuple[int, int, float, float]] = Counter()
    for row in rows:
        response = row.tokens[len(row.tokens) - len(row.loss_mask) :]
        for token, mask, logprob, a in zip(response, row.loss_mask, row.logprobs, row.advantages, strict=True):
            assert mask or logprob == 0
            found[row.rollout_id, token, logprob, a] += mask
    return +found


@given(CONVERSATIONS | GROUPS, st.booleans(), ESTIMATORS)
def test_merged_rows_train_the_same_tokens(groups, split, estimator):
    options = {"std_normalization": True, "split_advantage": split, "adv_estimator": estimator, "gamma": 0.9}
    apart = rows_from_groups(groups, **options)
    merged = rows_from_groups(groups, **options, rows="segment")
    assert len(merged) <= len(apart)
    assert sum(row.trained_tokens for row in merged) == sum(row.trained_tokens for row in apart)
    assert sampled(merged) == sampled(apart)


@given(CONVERSATIONS)
def test_every_sampled_token_of_a_merged_row_has_its_own_context(groups):
    """What stands before a trained token is what stood before it when it was sampled."""
    trajectories = [t for group in groups for t in group]
    contexts = {
        (i, (*turn.prompt_ids, *turn.completion.token_ids[: place + 1]))
        for i, t in enumerate(trajectories)
        for turn in trained(t)
        for place in range(len(turn.completion.token_ids))
    }
    for row in rows_from_groups(groups, std_normalization=True, split_advantage=False, rows="segment"):
        start = len(row.tokens) - len(row.loss_mask)
        for place, mask in enumerate(row.loss_mask):
            assert not mask or (row.rollout_id, row.tokens[: start + place + 1]) in contexts


@given(st.lists(st.integers(0, 3), min_size=1, max_size=24), st.data())
def test_conversations_that_alternate_make_one_row_each(order, data):
    """A1 B1 A2 B2 A3 B3 gives two rows; `order` says which conversation each turn belongs to."""
    held: dict[int, tuple[int, ...]] = {}
    made: list[Turn] = []
    for place, conversation in enumerate(order):
        between = tuple(data.draw(st.lists(st.integers(0, 1), max_size=3)))
        prompt = (*held.get(conversation, (100 + conversation,)), *between)
        made.append(Turn("turn", prompt, Completion((place,), (-1.0,), "stop"), True))
        held[conversation] = (*prompt, place)
    rows = make_rows(made, "segment")
    assert [row.tokens[0] - 100 for row in rows] == list(dict.fromkeys(order))
    assert [row.turns for row in rows] == [
        tuple(place for place, conversation in enumerate(order) if conversation == row.tokens[0] - 100) for row in rows
    ]
    assert {row.tokens for row in rows} == set(held.values())


@given(st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=7), st.integers(0, 1)), max_size=16))
@example([([0, 0, 1], 1), ([0], 0), ([0, 0, 1, 1, 0], 1)])  # the last one fits both segments
def test_a_turn_joins_the_segment_with_the_longest_prefix(made):
    """Two tokens and short prompts: branches, repeated turns and prompts that fit several segments are frequent."""
    turns = [Turn("turn", tuple(prompt), Completion((token,), (0.0,), "stop"), True) for prompt, token in made]
    expected: list[list[Turn]] = []
    for turn in turns:
        fitting = [segment for segment in expected if extends(turn.prompt_ids, segment[-1])]
        if fitting:
            max(fitting, key=lambda segment: len(segment[-1].prompt_ids)).append(turn)
        else:
            expected.append([turn])
    # Of segments with equal ids any may grow, so ids are compared.
    ends = [(*segment[-1].prompt_ids, *segment[-1].completion.token_ids) for segment in expected]
    assert sorted(row.tokens for row in make_rows(turns, "segment")) == sorted(ends)


def test_clipped_advantages_and_dropped_groups():
    turn = Turn("turn", (1,), Completion((2,), (0.0,), "stop"), True)

    def advantages(rewards: list[float], **options: float) -> list[float]:
        group = [Trajectory("t", (turn,), reward=reward) for reward in rewards]
        return [
            row.advantage for row in rows_from_groups([group], std_normalization=True, split_advantage=False, **options)
        ]

    outlier = [0.0] * 15 + [1.0]
    assert max(advantages(outlier)) == pytest.approx(3.75, abs=1e-3)
    assert max(advantages(outlier, advantage_clip=3.0)) == 3.0
    assert advantages([0.0, 0.1], min_group_std=0.1) == []
    assert len(advantages([0.0, 0.2], min_group_std=0.1)) == 2
    # It is that of the whole group, not of the two that are trained, nor of what length takes.
    assert advantages([0.0, 0.0, 0.0, 0.1], min_group_std=0.06, update_group_size=2) == []
    assert advantages([0.5, 0.5], min_group_std=0.1, max_response_length=1, overlong_buffer_len=1) == []


def test_down_sampling_takes_rollouts_that_the_filter_of_cut_ones_leaves():
    turn = Turn("turn", (1,), Completion((2,), (0.0,), "stop"), True)
    cut = [Trajectory("t", (turn,), reward=0.0, status="truncated") for _ in range(4)]
    group = [*cut, *(Trajectory("t", (turn,), reward=r) for r in (0.0, 0.0, 1.0, 1.0))]
    options = {"std_normalization": False, "split_advantage": False, "overlong_filter": True}
    rows = rows_from_groups([group], update_group_size=2, **options)
    assert [row.advantage for row in rows] == [pytest.approx(-1 / 6), pytest.approx(5 / 6)]
    for size in (None, 4):  # the cut ones stay in the statistics
        rows = rows_from_groups([group], update_group_size=size, **options)
        assert [row.advantage for row in rows] == [-0.25, -0.25, 0.75, 0.75]


@given(CONVERSATIONS | GROUPS, st.booleans(), st.sampled_from(["turn", "segment"]))
def test_estimators_by_turn_are_grpo_where_no_turn_counts(groups, std_normalization, unit):
    options = {"std_normalization": std_normalization, "split_advantage": False, "rows": unit}
    bare = [[replace(t, turns=tuple(replace(turn, reward=None) for turn in t.turns)) for t in g] for g in groups]
    grpo = rows_from_groups(groups, **options)
    assert rows_from_groups(groups, **options, adv_estimator="turn_grpo", turn_coef=0.0) == grpo
    assert rows_from_groups(bare, **options, adv_estimator="turn_grpo") == grpo
    assert rows_from_groups(bare, **options, adv_estimator="gigpo", turn_coef=0.0, gamma=0.9) == grpo


def conversation(reward: float, *turns: tuple[int, float | None], **options) -> Trajectory:
    """Make turns of so many sampled tokens and such rewards, each of which goes on from the one before."""
    made: list[Turn] = []
    ids: tuple[int, ...] = (1,)
    for tokens, earned in turns:
        made.append(Turn("turn", ids, Completion((2,) * tokens, (-1.0,) * tokens, "stop"), True, reward=earned))
        ids = (*ids, *(2,) * tokens, 1)
    return Trajectory("t", tuple(made), reward=reward, **options)


def advantages_of(groups: list[list[Trajectory]], **options) -> list[float | tuple[float, ...]]:
    options = {"std_normalization": False, "split_advantage": False, "rows": "segment", **options}
    return [row.advantage for row in rows_from_groups(groups, **options)]


def test_a_turn_is_compared_with_the_turns_of_its_number():
    """MT-GRPO by hand: the failed rollout counts nowhere, and neither does a turn without a reward."""
    group = [
        conversation(1.0, (2, 0.5), (1, 3.0), (1, None)),
        conversation(0.0, (1, 0.0)),
        conversation(9.0, (1, 9.0), status="failed", failure="deadline"),
        conversation(0.5, (3, 0.25), (2, 1.0)),
    ]
    first = (0.5 + 2 * 0.25,) * 2 + (0.0, 0.5 + 2 * 1.0, 0.0, 0.5)
    assert advantages_of([group], adv_estimator="turn_grpo", turn_coef=2.0) == [
        first, -0.5 + 2 * -0.25, (0.0, 0.0, 0.0, 0.0, -2.0, -2.0)
    ]  # fmt: skip


def test_a_turn_is_compared_with_the_turns_that_began_in_its_state():
    """GiGPO by hand: the first turns have one prompt; the second ones have different prompts, and one state or none."""
    a, b, c = (conversation(r, (n, None), (1, 0.5)) for r, n in ((1.0, 1), (0.0, 2), (0.25, 3)))
    named = [replace(t, turns=(t.turns[0], replace(t.turns[1], state="door"))) for t in (a, b)]
    # Returns: 1.5, 0.5 and 0.75 of the second turns; half of that of the first ones.
    apart, together = (
        advantages_of([[*group, c]], adv_estimator="gigpo", gamma=0.5, rows="turn") for group in ((a, b), named)
    )
    episodes = [7 / 12, -5 / 12, -2 / 12]
    firsts = [0.75 - 11 / 24, 0.25 - 11 / 24, 0.375 - 11 / 24]
    assert apart == pytest.approx([episodes[0] + firsts[0], episodes[0], episodes[1] + firsts[1], episodes[1],
                                   episodes[2] + firsts[2], episodes[2]])  # fmt: skip
    assert together[1::2] == pytest.approx([episodes[0] + 0.5, episodes[1] - 0.5, episodes[2]])
    assert together[::2] == apart[::2]


def test_what_the_method_says_of_a_turn_holds():
    one, two = conversation(1.0, (2, None), (3, None)), conversation(0.0, (1, None))
    turns = (replace(one.turns[0], advantage=7.0), replace(one.turns[1], advantage=(1.0, 0.0, -1.0)))
    group = [replace(one, turns=turns), two]
    assert advantages_of([group]) == [(7.0, 7.0, 0.0, 1.0, 0.0, -1.0), -0.5]
    assert advantages_of([group], rows="turn") == [7.0, (1.0, 0.0, -1.0), -0.5]
    assert advantages_of([[replace(one, turns=(turns[0], one.turns[1])), two]], rows="turn") == [7.0, 0.5, -0.5]
    assert advantages_of([[replace(group[0], status="failed", failure="deadline"), two]]) == [0.0]
    with pytest.raises(ValueError, match="turn has 2 sampled tokens, but its advantage has 3 numbers"):
        replace(one.turns[0], advantage=(1.0, 1.0, 1.0))


@pytest.mark.parametrize("estimator", get_args(AdvEstimator))
def test_a_reward_that_no_turn_would_get_is_refused(estimator):
    group = [conversation(1.0, (1, 0.5)), conversation(0.0, (1, 0.5))]
    judged = replace(group[0].turns[0], role="judge", trained=False)
    with pytest.raises(ValueError, match=r"turn 0 \(judge\) has a reward and is not trained; reward a trained turn"):
        advantages_of([[replace(group[0], turns=(judged,)), group[1]]], adv_estimator=estimator)


def test_a_rollouts_kl_costs_it_reward():
    group = [conversation(1.0, (1, None), metrics={"reference_kl": kl}) for kl in (2.0, 0.0)]
    assert advantages_of([group], kl_coef=0.25) == [-0.25, 0.25]
    assert advantages_of([group]) == [0.0, 0.0]
    with pytest.raises(ValueError, match="a rollout of task 't' has no metric reference_kl"):
        advantages_of([[group[0], conversation(1.0, (1, None))]], kl_coef=0.25)


@given(CONVERSATIONS | GROUPS, st.sampled_from(["turn", "segment"]))
def test_whitened_advantages_have_mean_0_and_std_1_over_the_tokens_of_a_batch(groups, unit):
    """However many rows and turns a rollout became."""
    options = {"std_normalization": False, "split_advantage": False, "rows": unit}
    plain, white = (rows_from_groups(groups, **options, adv_estimator=name) for name in ("grpo", "reinforce_plus_plus"))
    values = [a for row in white for a, mask in zip(row.advantages, row.loss_mask, strict=True) if mask]
    assert [(row.tokens, row.loss_mask) for row in white] == [(row.tokens, row.loss_mask) for row in plain]
    if len(values) > 1:
        assert mean(values) == pytest.approx(0.0, abs=1e-9)
        assert variance(values) == pytest.approx(1.0 if len(set(values)) > 1 else 0.0, abs=1e-3)
