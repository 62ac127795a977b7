"""Trajectories into training rows: normalise over the rollouts of a group first, expand into turns afterwards.

A rollout counts once in its group's statistics however many turns it had; a failed one counts not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from core.algorithms.advantages import group_advantages
from core.types import Group, Row, Trajectory, Turn

Credit = Literal["broadcast", "split"]


def rows_from_groups(groups: Sequence[Group], *, std_norm: bool, credit: Credit) -> list[Row]:
    """One Row for each trained turn; `rollout_id` numbers the trajectories over all groups.

    `credit` gives every turn the advantage of its trajectory (`broadcast`), or that divided by the number of turns
    (`split`, slime-agentic's MemAgent).
    """
    rows: list[Row] = []
    rollout_id = 0
    for group in groups:
        rewards = [None if t.status == "failed" else t.reward for t in group]
        for trajectory, advantage in zip(group, group_advantages(rewards, std_norm=std_norm), strict=True):
            if advantage is not None:
                parts = max(1, len(trajectory.turns)) if credit == "split" else 1
                rows += _rows(trajectory, advantage / parts, rollout_id)
            rollout_id += 1
    return rows


def _rows(trajectory: Trajectory, advantage: float, rollout_id: int) -> Iterator[Row]:
    for turn in trajectory.turns:
        if turn.trained and turn.completion.token_ids:
            yield _row(turn, advantage, rollout_id)


def _row(turn: Turn, advantage: float, rollout_id: int) -> Row:
    completion = turn.completion
    return Row(
        tokens=(*turn.prompt_ids, *completion.token_ids),
        loss_mask=(1,) * len(completion.token_ids),
        logprobs=completion.logprobs,
        advantage=advantage,
        rollout_id=rollout_id,
    )
