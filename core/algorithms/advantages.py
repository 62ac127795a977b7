"""Turns the rewards of a group of rollouts into advantages, before a rollout is expanded into rows.

A rollout counts once however many rows it becomes. `adv_estimator` names the rule; A is the advantage of a rollout, r
its reward, and mean and std (of a sample) are those of its group:

- grpo: A = (r - mean) / std (arXiv 2402.03300); without std_normalization r - mean (Dr. GRPO, arXiv 2503.20783). The
  numbers are those of slime's `RolloutManager._post_process_rewards`.
- rloo: A = r - mean of the others (arXiv 2402.14740, section 2.3).
- reinforce_plus_plus: A = r, then `whiten` over the tokens of the batch; with _baseline, A = r - mean before that
  (arXiv 2501.03262).
- turn_grpo: as grpo; a trained turn gets `turn_coef` times the normalised reward of the turn on top, among the turns of
  the same number in the group (MT-GRPO, arXiv 2505.11821).
- gigpo: as grpo, where r is all that a rollout earned, its turns included; a trained turn gets `turn_coef` times its
  normalised return on top, among the group's turns of its role that began in the same state (arXiv 2505.10978,
  equations 3 to 8). Its return is what it and later turns earned, the rollout's reward included, discounted by `gamma`
  a turn.
- gae: A = the return of the turn, and the trainer takes from it what the value head expects at each token: PPO's
  generalised advantage estimate (arXiv 1506.02438, equation 16) with lambda 1.

`statistics.mean` and `stdev` compute with exact rationals, so a group of equal rewards gets advantages of exactly 0.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from statistics import mean, pvariance, stdev
from typing import assert_never

from core.algorithms.coefficients import WITHOUT_MEAN
from core.types import AdvEstimator, Group, Trajectory

STD_EPSILON = 1e-6
WHITE_EPSILON = 1e-8


def group_advantages(
    rewards: Sequence[float | None],
    *,
    std_normalization: bool,
    adv_estimator: AdvEstimator = "grpo",
    clip: float | None = None,
) -> list[float | None]:
    """Return the advantage of each rollout of a group by `adv_estimator`, which may divide by (sample std + 1e-6).

    None marks a failed rollout: it leaves the statistics and gets None back. A single valid rollout gets 0, but with
    reinforce_plus_plus and gae its reward. `clip` bounds every advantage to +-clip.

    Raises:
        ValueError: a reward is not finite.
    """
    for index, reward in enumerate(rewards):
        if reward is not None and not math.isfinite(reward):
            raise ValueError(
                f"reward {index} of the group is {reward}; give a finite number, or None for a failed rollout"
            )
    valid = [float(reward) for reward in rewards if reward is not None]
    if not valid:
        return [None] * len(rewards)
    baseline = 0.0 if adv_estimator in WITHOUT_MEAN else mean(valid)
    single = len(valid) == 1
    std = 0.0 if single else stdev(valid)
    match adv_estimator:
        case "grpo" | "turn_grpo" | "gigpo":
            scale = std + STD_EPSILON if std_normalization and not single else 1.0
        case "rloo":
            scale = 1.0 if single else 1 - 1 / len(valid)  # r - mean of the others = (r - mean) * n / (n - 1)
        case "reinforce_plus_plus" | "reinforce_plus_plus_baseline" | "gae":
            scale = 1.0
        case _:
            assert_never(adv_estimator)
    bound = math.inf if clip is None else clip
    return [None if reward is None else max(-bound, min(bound, (reward - baseline) / scale)) for reward in rewards]


def credit_turns(
    group: Group,
    advantages: Sequence[float | None],
    adv_estimator: AdvEstimator,
    *,
    std_normalization: bool,
    turn_coef: float,
    gamma: float,
) -> list[dict[int, float] | None]:
    """Return the advantage of each trained turn of each rollout, by its place; None for a rollout without advantage.

    `advantages` are those of the rollouts. The turns of rollouts without one leave the statistics.

    Raises:
        ValueError: a turn that is not trained has a reward or an advantage; or, with gae, a trained one an advantage.
    """
    # Maps what turns have in common, to be compared, to what each of them earned: (rollout, place) -> value.
    compared: defaultdict[Hashable, dict[tuple[int, int], float]] = defaultdict(dict)
    trained_places = [[place for place, turn in enumerate(t.turns) if turn.trained] for t in group]
    members = list(zip(group, advantages, trained_places, strict=True))
    for number, (trajectory, advantage, trained) in enumerate(members):
        for place, turn in enumerate(trajectory.turns):
            if turn.reward is not None and not turn.trained:
                raise ValueError(f"turn {place} ({turn.role}) has a reward and is not trained; reward a trained turn")
            if turn.advantage is not None and (not turn.trained or adv_estimator == "gae"):
                reason = "gae has a value head" if turn.trained else "it is not trained"
                raise ValueError(f"turn {place} ({turn.role}) has an advantage of its own, and {reason}; leave it out")
        if advantage is None:
            continue
        if adv_estimator == "turn_grpo":
            for count, place in enumerate(trained):
                if (reward := trajectory.turns[place].reward) is not None:
                    compared[count][number, place] = reward
        elif adv_estimator == "gigpo":
            for place, value in zip(trained, _find_returns(trajectory, trajectory.reward, gamma), strict=True):
                turn = trajectory.turns[place]
                state = turn.prompt_ids if turn.state is None else turn.state
                compared[turn.role, state][number, place] = value
    extra: dict[tuple[int, int], float] = {}
    for values in compared.values():
        normalised = group_advantages(list(values.values()), std_normalization=std_normalization)
        extra |= {key: value for key, value in zip(values, normalised, strict=True) if value is not None}
    credits: list[dict[int, float] | None] = []
    for number, (trajectory, advantage, trained) in enumerate(members):
        if advantage is None:
            credits.append(None)
        elif adv_estimator == "gae":
            credits.append(dict(zip(trained, _find_returns(trajectory, advantage, gamma), strict=True)))
        else:
            credits.append({place: advantage + turn_coef * extra.get((number, place), 0.0) for place in trained})
    return credits


def _find_returns(trajectory: Trajectory, reward: float | None, gamma: float) -> list[float]:
    """Return what each trained turn and the later ones earned: R_k = r_k + gamma * R_(k+1).

    The last one earns the rollout's `reward`, too (GiGPO, arXiv 2505.10978, equation 5).
    """
    earned = [turn.reward or 0.0 for turn in trajectory.turns if turn.trained]
    returns: list[float] = []
    running = reward or 0.0
    for place, value in enumerate(reversed(earned)):
        running = value + (gamma if place else 1.0) * running
        returns.append(running)
    return returns[::-1]


def whiten(advantages: Sequence[float], tokens: Sequence[int]) -> list[float]:
    """Return (A - mean) / std of a batch, in which each advantage counts once for each of its `tokens`.

    The variance is that of a sample, and 1e-8 is added to it: verl's `masked_whiten`, but exactly 0 if all are equal.
    """
    pairs, total = list(zip(advantages, tokens, strict=True)), sum(tokens)
    if total < 2 or len({a for a, n in pairs if n}) == 1:
        return [0.0] * len(advantages)
    center = math.fsum(a * n for a, n in pairs) / total
    variance = math.fsum(n * (a - center) ** 2 for a, n in pairs) / (total - 1)
    return [(a - center) / math.sqrt(variance + WHITE_EPSILON) for a in advantages]


def keep_most_different(rewards: Sequence[float | None], count: int) -> list[float | None]:
    """Return the rewards, with None for all but the `count` rollouts whose rewards have the largest variance.

    They are some of the highest and some of the lowest rewards: the max-variance down-sampling of PODS (arXiv
    2504.13818). The advantages are then those among the kept rollouts.
    """
    valid = {index: reward for index, reward in enumerate(rewards) if reward is not None}
    if len(valid) <= count:
        return list(rewards)
    order = sorted(valid, key=lambda index: valid[index])
    subsets = [order[:low] + order[len(order) - count + low :] for low in range(count, -1, -1)]
    kept = max(subsets, key=lambda subset: pvariance([valid[index] for index in subset]))
    return [reward if index in kept else None for index, reward in enumerate(rewards)]


def overlong_penalty(tokens: int, max_length: int, buffer: int) -> float:
    """Return what a rollout's reward gets for its length: 0, then a line down to -1 over the last `buffer` tokens.

    This is the soft overlong punishment of DAPO (arXiv 2503.14476, equation 13).
    """
    return max(-1.0, min(0.0, (max_length - buffer - tokens) / buffer))
