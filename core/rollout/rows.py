"""Turns trajectories into training rows: normalise over the rollouts of a group first, expand into turns afterwards.

A rollout counts once in its group's statistics however many turns it had; a failed one does not count. A conversation
that only grows can become one row: the tokens that the policy did not sample are masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from core.algorithms.advantages import group_advantages
from core.types import Group, Row, Trajectory, Turn

Credit = Literal["broadcast", "split"]


def rows_from_groups(
    groups: Sequence[Group],
    *,
    std_norm: bool,
    credit: Credit,
    advantage_clip: float | None = None,
    min_group_std: float = 0.0,
    merge_turns: bool = False,
) -> list[Row]:
    """Make one Row of each trained turn, or of each segment with `merge_turns`.

    `rollout_id` numbers the trajectories over all groups. `credit` gives every turn the advantage of its trajectory
    (`broadcast`), or that divided by the number of turns (`split`, slime-agentic's MemAgent). The other settings are
    those of the recipe's algorithm section.
    """
    rows: list[Row] = []
    rollout_id = 0
    for group in groups:
        rewards = [None if t.status == "failed" else t.reward for t in group]
        advantages = group_advantages(rewards, std_norm=std_norm, clip=advantage_clip, min_std=min_group_std)
        for trajectory, advantage in zip(group, advantages, strict=True):
            if advantage is not None:
                parts = max(1, len(trajectory.turns)) if credit == "split" else 1
                for segment in split_segments(trajectory, merge=merge_turns):
                    rows.append(_make_row(segment, advantage / parts, rollout_id))
            rollout_id += 1
    return rows


def split_segments(trajectory: Trajectory, *, merge: bool) -> list[list[Turn]]:
    """Split the trained turns into segments: one turn each or, with `merge`, as long as each turn extends the last."""
    segments: list[list[Turn]] = []
    for turn in trajectory.turns:
        if not turn.trained or not turn.completion.token_ids:
            continue
        if merge and segments and extends(turn.prompt_ids, segments[-1][-1]):
            segments[-1].append(turn)
        else:
            segments.append([turn])
    return segments


def extends(prompt_ids: tuple[int, ...], earlier: Turn) -> bool:
    """Return whether a prompt begins with all ids of an earlier turn: its prompt, then its completion."""
    prompt, sampled = earlier.prompt_ids, earlier.completion.token_ids
    end = len(prompt) + len(sampled)
    return prompt_ids[: len(prompt)] == prompt and prompt_ids[len(prompt) : end] == sampled


def _make_row(segment: Sequence[Turn], advantage: float, rollout_id: int) -> Row:
    """Make one Row of the last turn's ids. Its response begins with the first completion; sampled ids are trained."""
    last = segment[-1]
    mask: list[int] = []
    logprobs: list[float] = []
    # mask[i] and logprobs[i] belong to the row's token number start + i.
    start = len(segment[0].prompt_ids)
    for turn in segment:
        # This turn's prompt goes beyond what the row has so far by ids that were not sampled.
        unsampled = len(turn.prompt_ids) - start - len(mask)
        mask += [0] * unsampled + [1] * len(turn.completion.token_ids)
        logprobs += [0.0] * unsampled + list(turn.completion.logprobs)
    tokens = (*last.prompt_ids, *last.completion.token_ids)
    return Row(tokens, tuple(mask), tuple(logprobs), advantage, rollout_id)
