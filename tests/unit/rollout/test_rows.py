"""Rows: normalised over rollouts first, expanded into turns afterwards; what was sampled is what is trained."""

from __future__ import annotations

from collections import Counter
from statistics import mean

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.algorithms.advantages import group_advantages
from core.rollout.rows import make_rows, rows_from_groups
from core.rollout.turns import extends
from core.types import Completion, Row, Trajectory, Turn

TOKENS = st.integers(0, 999)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    prompt = tuple(draw(st.lists(TOKENS, min_size=1, max_size=6)))
    sampled = tuple(draw(st.lists(TOKENS, max_size=6)))
    logprobs = tuple(draw(st.floats(-9, 0)) for _ in sampled)
    return Turn("turn", prompt, Completion(sampled, logprobs, "stop"), draw(st.booleans()))


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


@given(GROUPS, st.booleans(), st.booleans())
def test_failed_rollouts_leave_the_baseline(groups, std_normalization, split):
    """The rows are those of groups that never held the failed rollouts."""
    rows = rows_from_groups(groups, std_normalization=std_normalization, split_advantage=split)
    without = [alive for group in groups if (alive := [t for t in group if t.status != "failed"])]
    expected = rows_from_groups(without, std_normalization=std_normalization, split_advantage=split)
    assert [(row.tokens, row.advantage) for row in rows] == [(row.tokens, row.advantage) for row in expected]


@given(GROUPS, st.booleans())
def test_credit_is_the_trajectorys_advantage_whole_or_in_equal_parts(groups, std_normalization):
    broadcast = rows_from_groups(groups, std_normalization=std_normalization, split_advantage=False)
    split = rows_from_groups(groups, std_normalization=std_normalization, split_advantage=True)
    flat = [t for group in groups for t in group]
    for group in groups:
        rewards = [t.reward if t.status != "failed" else None for t in group]
        expected = dict(
            zip(map(id, group), group_advantages(rewards, std_normalization=std_normalization), strict=True)
        )
        for whole, part in zip(broadcast, split, strict=True):
            trajectory = flat[whole.rollout_id]
            if id(trajectory) in expected:
                assert whole.advantage == expected[id(trajectory)]
                assert part.advantage == pytest.approx(whole.advantage / len(trajectory.turns))


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=6), st.data(), st.booleans())
def test_turn_counts_do_not_touch_the_statistics(rewards, data, std_normalization):
    """slime's positional reshape gets this wrong: a rollout counts once however many rows it became."""

    def advantages(counts: list[int]) -> list[float]:
        turn = Turn("turn", (1,), Completion((2,), (0.0,), "stop"), True)
        group = [Trajectory("t", (turn,) * n, reward=r) for n, r in zip(counts, rewards, strict=True)]
        rows = rows_from_groups([group], std_normalization=std_normalization, split_advantage=False)
        return [next(row.advantage for row in rows if row.rollout_id == i) for i in range(len(rewards))]

    counts = data.draw(st.lists(st.integers(1, 7), min_size=len(rewards), max_size=len(rewards)))
    uneven = advantages(counts)
    assert uneven == advantages([1] * len(rewards))
    assert mean(uneven) == pytest.approx(0, abs=1e-9)


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
        made.append(Turn("turn", (*held, *fresh.prompt_ids), fresh.completion, fresh.trained))
    return Trajectory("t", tuple(made), reward=draw(st.sampled_from([0.0, 1.0])))


CONVERSATIONS = st.lists(st.lists(conversations(), min_size=1, max_size=4), min_size=1, max_size=3)


def sampled(rows: list[Row]) -> Counter[tuple[int, int, float, float]]:
    """(rollout, token, log-prob, advantage) of every trained token."""
    found: Counter[tuple[int, int, float, float]] = Counter()
    for row in rows:
        response = row.tokens[len(row.tokens) - len(row.loss_mask) :]
        for token, mask, logprob in zip(response, row.loss_mask, row.logprobs, strict=True):
            assert mask or logprob == 0
            found[row.rollout_id, token, logprob, row.advantage] += mask
    return +found


@given(CONVERSATIONS | GROUPS, st.booleans())
def test_merged_rows_train_the_same_tokens(groups, split):
    apart = rows_from_groups(groups, std_normalization=True, split_advantage=split)
    merged = rows_from_groups(groups, std_normalization=True, split_advantage=split, rows="segment")
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
