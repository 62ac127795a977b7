"""Makes training rows from trajectories: normalise over the rollouts of a group first, expand into turns afterwards.

A rollout counts once in its group's statistics, however many turns it had; a failed one does not count. An append-only
conversation becomes one row when rows are segments; tokens the policy did not sample are masked.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.algorithms.advantages import group_advantages
from core.types import Group, Row, RowUnit, Trajectory, Turn


def rows_from_groups(
    groups: Sequence[Group],
    *,
    std_normalization: bool,
    split_advantage: bool,
    advantage_clip: float | None = None,
    min_group_std: float = 0.0,
    rows: RowUnit = "turn",
) -> list[Row]:
    """Make one Row of each trained turn or segment. `rollout_id` numbers the trajectories over all groups.

    Every turn gets the advantage of its trajectory; with `split_advantage` it gets that divided by the number of turns
    (slime-agentic's MemAgent). The other settings are those of the recipe's algorithm section.
    """
    result: list[Row] = []
    rollout_id = 0
    for group in groups:
        rewards = [None if t.status == "failed" else t.reward for t in group]
        advantages = group_advantages(
            rewards, std_normalization=std_normalization, clip=advantage_clip, min_std=min_group_std
        )
        for trajectory, advantage in zip(group, advantages, strict=True):
            if advantage is not None:
                parts = max(1, len(trajectory.turns)) if split_advantage else 1
                for segment in split_segments(trajectory, rows):
                    result.append(_make_row(segment, advantage / parts, rollout_id))
            rollout_id += 1
    return result


def split_segments(trajectory: Trajectory, rows: RowUnit) -> list[list[Turn]]:
    """Group the trained turns into segments: each turn alone, or together with the turns that it extends."""
    segments: list[list[Turn]] = []
    for turn in trajectory.turns:
        if not turn.trained or not turn.completion.token_ids:
            continue
        if rows == "segment" and segments and extends(turn.prompt_ids, segments[-1][-1]):
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
    # The last turn holds all ids of the segment: [first prompt | completion | between | completion | ...]. The response
    # begins at `start`, with the first completion. `mask` and `logprobs` have one entry for each response token so far,
    # so a turn's prompt ends `between` tokens after the previous completion.
    last, mask, logprobs = segment[-1], list[int](), list[float]()
    start = len(segment[0].prompt_ids)
    for turn in segment:
        between = len(turn.prompt_ids) - start - len(mask)
        mask += [0] * between + [1] * len(turn.completion.token_ids)
        logprobs += [0.0] * between + list(turn.completion.logprobs)
    tokens = (*last.prompt_ids, *last.completion.token_ids)
    return Row(tokens, tuple(mask), tuple(logprobs), advantage, rollout_id)
