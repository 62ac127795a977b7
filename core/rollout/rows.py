"""Makes training rows from trajectories: normalise over the rollouts of a group first, expand into turns afterwards.

A rollout counts once in its group's statistics, however many turns it had; a failed one does not count. An append-only
conversation becomes one row when rows are segments; tokens the policy did not sample are masked.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Required, TypedDict, Unpack

from core.algorithms.advantages import credit_turns, group_advantages, keep_most_different, overlong_penalty, whiten
from core.algorithms.coefficients import BATCH_ESTIMATORS
from core.rollout.runner import has_signal
from core.rollout.turns import extends
from core.types import Advantage, AdvEstimator, Group, Row, RowUnit, Trajectory, Turn

REFERENCE_KL = "reference_kl"
"""Names the metric that holds a rollout's KL to the start model, in nats, which `kl_coef` takes from its reward."""


def rows_from_groups(
    groups: Sequence[Group], *, rows: RowUnit = "turn", **options: Unpack[AdvantageOptions]
) -> list[Row]:
    """Make one Row of each trained turn or segment. `rollout_id` numbers the trajectories over all groups.

    `options` are those of `rollout_advantages`, and how the turns of a rollout share its advantage.
    """
    rollouts = [trajectory for group in groups for trajectory in group]
    credits = [credit for group in groups for credit in _credit_group(group, **options)]
    if options.get("adv_estimator") in BATCH_ESTIMATORS:
        _whiten_turns(rollouts, credits)
    result: list[Row] = []
    for number, (trajectory, credit) in enumerate(zip(rollouts, credits, strict=True)):
        if credit is not None:
            own = {i: turn.advantage for i, turn in enumerate(trajectory.turns) if turn.advantage is not None}
            result += make_rows(trajectory.turns, rows, {**credit, **own}, number)
    return result


class AdvantageOptions(TypedDict, total=False):
    """Holds the settings of the recipe's algorithm section that say how rewards become advantages."""

    adv_estimator: AdvEstimator
    std_normalization: Required[bool]
    split_advantage: Required[bool]
    turn_coef: float
    gamma: float
    kl_coef: float
    advantage_clip: float | None
    min_group_std: float
    max_response_length: int | None
    overlong_buffer_len: int | None
    overlong_filter: bool
    update_group_size: int | None


def _whiten_turns(rollouts: Group, credits: Sequence[dict[int, float] | None]) -> None:
    """Replace the advantage of each trained turn of a batch by the whitened one."""
    trained = [(t, credit, place) for t, credit in zip(rollouts, credits, strict=True) if credit for place in credit]
    tokens = [len(trajectory.turns[place].completion.token_ids) for trajectory, _, place in trained]
    values = whiten([credit[place] for _, credit, place in trained], tokens)
    for (_, credit, place), value in zip(trained, values, strict=True):
        credit[place] = value


def _credit_group(group: Group, **options: Unpack[AdvantageOptions]) -> list[dict[int, float] | None]:
    """Return the advantage of each trained turn of each trajectory, by its place; None for one that is not trained."""
    turns, trained_tokens = [len(t.turns) for t in group], [count_trained_tokens(t) for t in group]
    advantages = rollout_advantages(group, turns, trained_tokens, **options)
    return credit_turns(
        group,
        advantages,
        options.get("adv_estimator", "grpo"),
        std_normalization=options["std_normalization"],
        turn_coef=options.get("turn_coef", 1.0),
        gamma=options.get("gamma", 1.0),
    )


def rollout_advantages(
    group: Group, turns: Sequence[int], trained_tokens: Sequence[int], **options: Unpack[AdvantageOptions]
) -> list[float | None]:
    """Return the advantage of each trajectory of a group; None for a trajectory that is not trained.

    With `split_advantage` it is divided by the number of all its turns, trained or not (slime-agentic's MemAgent).
    `turns` and `trained_tokens` count those of each trajectory, which need not hold them here.
    """
    longest, buffer = options.get("max_response_length"), options.get("overlong_buffer_len")
    rewards = [None if t.status == "failed" else t.reward for t in group]
    if (least := options.get("min_group_std")) and not has_signal(group, least):
        return [None] * len(group)
    if options.get("adv_estimator") == "gigpo":
        earned = [sum(turn.reward or 0.0 for turn in t.turns) for t in group]
        rewards = [None if r is None else r + extra for r, extra in zip(rewards, earned, strict=True)]
    if coefficient := options.get("kl_coef"):
        rewards = [None if r is None else r - coefficient * _read_kl(t) for r, t in zip(rewards, group, strict=True)]
    if longest and buffer:
        penalties = [overlong_penalty(n, longest, buffer) for n in trained_tokens]
        rewards = [None if r is None else r + p for r, p in zip(rewards, penalties, strict=True)]
    cut = [bool(options.get("overlong_filter")) and t.status == "truncated" for t in group]
    if count := options.get("update_group_size"):  # of those that may be trained; the cut stay in the statistics
        kept = keep_most_different([None if c else r for c, r in zip(cut, rewards, strict=True)], count)
        rewards = [r if c else k for c, r, k in zip(cut, rewards, kept, strict=True)]
    advantages = group_advantages(
        rewards,
        adv_estimator=options.get("adv_estimator", "grpo"),
        std_normalization=options["std_normalization"],
        clip=options.get("advantage_clip"),
    )
    return [
        None if advantage is None or c else advantage / (max(1, count) if options["split_advantage"] else 1)
        for advantage, count, c in zip(advantages, turns, cut, strict=True)
    ]


def _read_kl(trajectory: Trajectory) -> float:
    if REFERENCE_KL not in trajectory.metrics:
        raise ValueError(
            f"kl_coef is set, but a rollout of task {trajectory.task_id!r} has no metric {REFERENCE_KL}, which only a "
            "run with kl_coef measures; set kl_coef to 0"
        )
    return trajectory.metrics[REFERENCE_KL]


def count_trained_tokens(trajectory: Trajectory) -> int:
    return sum(len(turn.completion.token_ids) for turn in trajectory.turns if turn.trained)


def make_rows(
    turns: Sequence[Turn], rows: RowUnit, advantages: Mapping[int, Advantage] | None = None, rollout_id: int = 0
) -> list[Row]:
    """Make the rows of one rollout from the advantage of each trained turn, by its place. Without them it is NaN."""
    result: list[Row] = []
    for places in _split_segments(turns, rows):
        segment = [turns[place] for place in places]
        tokens, mask, logprobs = _join_segment(segment)
        values = [math.nan if advantages is None else advantages[place] for place in places]
        result.append(
            Row(tokens, mask, logprobs, _spread(values, segment, mask), rollout_id, tuple(places), segment[0].policy)
        )
    return result


def _spread(values: Sequence[Advantage], turns: Sequence[Turn], mask: Sequence[int]) -> Advantage:
    """Return the one advantage that all turns of a segment have, or one for each token of its response."""
    if all(value is values[0] or value == values[0] for value in values) and not isinstance(values[0], tuple):
        return values[0]
    trained: list[float] = []  # of each sampled token, turn after turn
    for turn, value in zip(turns, values, strict=True):
        trained += value if isinstance(value, tuple) else (value,) * len(turn.completion.token_ids)
    numbers = iter(trained)
    return tuple(next(numbers) if sampled else 0.0 for sampled in mask)


def _split_segments(turns: Sequence[Turn], rows: RowUnit) -> list[list[int]]:
    """Group the places of the trained turns into segments: each alone, or together with the turns that it extends.

    A turn joins the segment of its policy of which its prompt holds the most ids, so conversations that alternate stay
    apart. The time is linear in the tokens.
    """
    trained = [place for place, turn in enumerate(turns) if turn.trained and turn.completion.token_ids]
    if rows == "turn":
        return [[place] for place in trained]
    segments: list[list[int]] = []
    # Each key (length, hash, policy) of all ids of a segment so far leads to the segments that end there.
    ends: defaultdict[tuple[int, int, str], list[list[int]]] = defaultdict(list)
    for place in trained:
        turn = turns[place]
        hashes = _hash_prefixes(turn.prompt_ids)
        for key in sorted(ends, reverse=True):
            length, hash_of_ids, policy = key
            if length <= len(turn.prompt_ids) and hashes[length] == hash_of_ids and policy == turn.policy:
                found = ends[key]
                if extends(turn.prompt_ids, turns[found[-1][-1]]):
                    segment = found.pop()
                    if not found:
                        del ends[key]
                    break
        else:
            segment = []
            segments.append(segment)
        segment.append(place)
        ids = (*turn.prompt_ids, *turn.completion.token_ids)
        ends[len(ids), _hash_prefixes(ids)[-1], turn.policy].append(segment)
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
