"""Makes training rows from trajectories: normalise over the rollouts of a group first, expand into turns afterwards.

A rollout counts once in its group's statistics, however many turns it had; a failed one does not count. An append-only
conversation becomes one row when rows are segments; tokens the policy did not sample are masked.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Required, TypedDict, Unpack

from core.algorithms.advantages import group_advantages, keep_most_different, overlong_penalty
from core.rollout.turns import extends
from core.types import Group, Row, RowUnit, Trajectory, Turn


def rows_from_groups(
    groups: Sequence[Group], *, rows: RowUnit = "turn", **options: Unpack[AdvantageOptions]
) -> list[Row]:
    """Make one Row of each trained turn or segment. `rollout_id` numbers the trajectories over all groups.

    `options` are those of `turn_advantages`, whose values the rows of a trajectory get.
    """
    result: list[Row] = []
    rollout_id = 0
    for group in groups:
        turns, trained_tokens = [len(t.turns) for t in group], [count_trained_tokens(t) for t in group]
        advantages = turn_advantages(group, turns, trained_tokens, **options)
        for trajectory, advantage in zip(group, advantages, strict=True):
            if advantage is not None:
                result += make_rows(trajectory.turns, rows, advantage, rollout_id)
            rollout_id += 1
    return result


class AdvantageOptions(TypedDict, total=False):
    """Holds the settings of the recipe's algorithm section that say how rewards become advantages."""

    std_normalization: Required[bool]
    split_advantage: Required[bool]
    advantage_clip: float | None
    min_group_std: float
    max_response_length: int | None
    overlong_buffer_len: int | None
    overlong_filter: bool
    update_group_size: int | None


def turn_advantages(
    group: Group, turns: Sequence[int], trained_tokens: Sequence[int], **options: Unpack[AdvantageOptions]
) -> list[float | None]:
    """Return what every trained turn of each trajectory of a group gets; None for a trajectory that is not trained.

    It is the advantage of the trajectory; with `split_advantage` that is divided by the number of all its turns,
    trained or not (slime-agentic's MemAgent). `turns` and `trained_tokens` count those of each trajectory, which need
    not hold them here.
    """
    longest, buffer = options.get("max_response_length"), options.get("overlong_buffer_len")
    rewards = [None if t.status == "failed" else t.reward for t in group]
    if longest and buffer:
        penalties = [overlong_penalty(n, longest, buffer) for n in trained_tokens]
        rewards = [None if r is None else r + p for r, p in zip(rewards, penalties, strict=True)]
    if kept := options.get("update_group_size"):
        rewards = keep_most_different(rewards, kept)
    advantages = group_advantages(
        rewards,
        std_normalization=options["std_normalization"],
        clip=options.get("advantage_clip"),
        min_std=options.get("min_group_std", 0.0),
    )
    return [
        None
        if advantage is None or (options.get("overlong_filter") and trajectory.status == "truncated")
        else advantage / (max(1, count) if options["split_advantage"] else 1)
        for trajectory, advantage, count in zip(group, advantages, turns, strict=True)
    ]


def count_trained_tokens(trajectory: Trajectory) -> int:
    return sum(len(turn.completion.token_ids) for turn in trajectory.turns if turn.trained)


def make_rows(turns: Sequence[Turn], rows: RowUnit, advantage: float = math.nan, rollout_id: int = 0) -> list[Row]:
    """Make the rows of one rollout. Without a reward there is no advantage."""
    return [
        Row(*_join_segment([turns[place] for place in places]), advantage, rollout_id, tuple(places))
        for places in _split_segments(turns, rows)
    ]


def _split_segments(turns: Sequence[Turn], rows: RowUnit) -> list[list[int]]:
    """Group the places of the trained turns into segments: each alone, or together with the turns that it extends.

    A turn joins the segment of which its prompt holds the most ids, so conversations that alternate stay apart. The
    time is linear in the tokens.
    """
    trained = [place for place, turn in enumerate(turns) if turn.trained and turn.completion.token_ids]
    if rows == "turn":
        return [[place] for place in trained]
    segments: list[list[int]] = []
    # Each key (length, hash) of all ids of a segment so far leads to the segments that end there.
    ends: defaultdict[tuple[int, int], list[list[int]]] = defaultdict(list)
    for place in trained:
        turn = turns[place]
        hashes = _hash_prefixes(turn.prompt_ids)
        for length, hash_of_ids in sorted(ends, reverse=True):
            if length <= len(turn.prompt_ids) and hashes[length] == hash_of_ids:
                found = ends[length, hash_of_ids]
                if extends(turn.prompt_ids, turns[found[-1][-1]]):
                    segment = found.pop()
                    if not found:
                        del ends[length, hash_of_ids]
                    break
        else:
            segment = []
            segments.append(segment)
        segment.append(place)
        ids = (*turn.prompt_ids, *turn.completion.token_ids)
        ends[len(ids), _hash_prefixes(ids)[-1]].append(segment)
    return segments


def _hash_prefixes(ids: Sequence[int]) -> list[int]:
    """Return a hash of the first n ids for every n from 0 on. Equal hashes need a comparison of the ids."""
    hashes = [0]
    for token in ids:
        hashes.append(hash((hashes[-1], token)))
    return hashes


def _join_segment(segment: Sequence[Turn]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
    """Return the tokens of a segment, and the loss mask and log-probs of its response, which begins after a prompt."""
    # The last turn holds all ids of the segment: [first prompt | completion | between | completion | ...]. The response
    # begins at `start`, with the first completion. `mask` and `logprobs` have one entry for each response token so far,
    # so a turn's prompt ends `between` tokens after the previous completion.
    last, mask, logprobs = segment[-1], list[int](), list[float]()
    start = len(segment[0].prompt_ids)
    for turn in segment:
        between = len(turn.prompt_ids) - start - len(mask)
        mask += [0] * between + [1] * len(turn.completion.token_ids)
        logprobs += [0.0] * between + list(turn.completion.logprobs)
    return (*last.prompt_ids, *last.completion.token_ids), tuple(mask), tuple(logprobs)
