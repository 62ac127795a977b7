"""Makes training rows from trajectories: normalise over the rollouts of a group first, expand into turns afterwards.

A rollout counts once in its group's statistics, however many turns it had; a failed one does not count. An append-only
conversation becomes one row when rows are segments; tokens the policy did not sample are masked.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from core.algorithms.advantages import group_advantages, keep_most_different, overlong_penalty
from core.types import Group, Row, RowUnit, Trajectory, Turn


def rows_from_groups(
    groups: Sequence[Group],
    *,
    std_normalization: bool,
    split_advantage: bool,
    advantage_clip: float | None = None,
    min_group_std: float = 0.0,
    rows: RowUnit = "turn",
    max_response_length: int | None = None,
    overlong_buffer_len: int | None = None,
    overlong_filter: bool = False,
    update_group_size: int | None = None,
) -> list[Row]:
    """Make one Row of each trained turn or segment. `rollout_id` numbers the trajectories over all groups.

    Every turn gets the advantage of its trajectory; with `split_advantage` that is divided by the number of all its
    turns, trained or not (slime-agentic's MemAgent). The other settings are those of the recipe's algorithm section.
    """
    result: list[Row] = []
    rollout_id = 0
    for group in groups:
        rewards = [None if t.status == "failed" else t.reward for t in group]
        if max_response_length and overlong_buffer_len:
            lengths = [count_trained_tokens(t) for t in group]
            penalties = [overlong_penalty(n, max_response_length, overlong_buffer_len) for n in lengths]
            rewards = [None if r is None else r + p for r, p in zip(rewards, penalties, strict=True)]
        if update_group_size:
            rewards = keep_most_different(rewards, update_group_size)
        advantages = group_advantages(
            rewards, std_normalization=std_normalization, clip=advantage_clip, min_std=min_group_std
        )
        for trajectory, advantage in zip(group, advantages, strict=True):
            if advantage is not None and not (overlong_filter and trajectory.status == "truncated"):
                parts = max(1, len(trajectory.turns)) if split_advantage else 1
                result += make_rows(trajectory.turns, rows, advantage / parts, rollout_id)
            rollout_id += 1
    return result


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


def extends(prompt_ids: tuple[int, ...], earlier: Turn) -> bool:
    """Return whether a prompt begins with all ids of an earlier turn: its prompt, then its completion."""
    prompt, sampled = earlier.prompt_ids, earlier.completion.token_ids
    end = len(prompt) + len(sampled)
    return prompt_ids[: len(prompt)] == prompt and prompt_ids[len(prompt) : end] == sampled


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
