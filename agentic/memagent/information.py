"""Rewards a memory from which the right answer is likely (InfoMem).

Paper: "InfoMem: Training Long-Context Memory Agents with Answer-Conditioned Information Gain", arXiv 2606.03329, of
which we read the abstract; we could not get its code. The final memory earns by how much it raises the mean log-prob of
the true answer's tokens against no memory; right rollouts alone do, and it is normalised before it is added.

A right rollout has sampled the true answer, so its log-probs are there and nothing is scored: the reward becomes
`reward + weight * z`, where z is (log-prob - mean) / std (of a sample) among the right rollouts of the group, within
-1 and 1. One right rollout alone has z = 0. So a right rollout stays above a wrong one, and a group that is all right
has a signal where its last prompts differ.

Departures:
- The answer is the one that was sampled, in its form, with its box or its "the answer is", at the temperature of the
  rollout. What the policy wrote before it in the same turn is given like the memory: one that reasons there until the
  answer is sure hides what its memory lacks.
- The log-prob without a memory is left out. For answers with the same tokens it is one number, and falls out of z.
- The bound of z, and that the group normalises it, are ours; the abstract does not say over what the paper does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import fmean, mean, stdev

from agentic.memagent.config import MemAgentRecipe
from core.rollout.method import Regrade
from core.text.tokenizer import Ids
from core.types import Completion, Group, Task, Trajectory

STD_EPSILON = 1e-6


def measure_answer(completion: Completion, read: Callable[[Ids], str | None]) -> dict[str, float]:
    """Return the metric `answer_logprob`, the mean log-prob of the answer's tokens; {} where `read` finds no answer.

    They are the fewest tokens from which `read` reads what it reads from all: neither what stands before the answer nor
    what follows it counts.
    """
    ids = completion.token_ids
    answer = read(ids)
    if answer is None:
        return {}
    start = bisect_left(range(len(ids)), True, key=lambda place: read(ids[place:]) != answer) - 1
    end = bisect_left(range(len(ids)), True, lo=start, key=lambda place: read(ids[start:place]) == answer)
    return {"answer_logprob": fmean(completion.logprobs[start:end])}


def make_regrade(recipe: MemAgentRecipe) -> Regrade | None:
    """Return what adds the reward to a group's; None without the option."""
    weight = recipe.memagent.information_reward
    return partial(add_information, weight) if weight else None


def add_information(weight: float, task: Task, group: Group) -> list[Trajectory]:
    """Add `weight` * z to the reward of each right rollout; all others stay as they are."""
    right = [t.metrics["answer_logprob"] for t in group if (t.reward or 0.0) > 0]
    if len(right) < 2:
        return list(group)
    center, spread = mean(right), stdev(right) + STD_EPSILON

    def grade(trajectory: Trajectory) -> Trajectory:
        if not (reward := trajectory.reward or 0.0) > 0:
            return trajectory
        z = (trajectory.metrics["answer_logprob"] - center) / spread
        return replace(trajectory, reward=reward + weight * max(-1.0, min(1.0, z)))

    return [grade(trajectory) for trajectory in group]
